import { expect, test } from 'vitest'
import { isId, isName } from '../../../src/metadata/identifiers.ts'

/**
 * Texts that are neither an id nor a name: they would end a Redis key's hash tag, a file name, a path or an nftables
 * rule.
 */
const HOSTILE = [
  '',
  ' ',
  '.',
  '..',
  '../etc/passwd',
  '.hidden',
  '-rf',
  '_x',
  'a/b',
  'a b',
  'a:b',
  'a{b}',
  'a"b',
  'a;b',
  'a\nb',
  'srv-a\n',
  '\nsrv-a',
  'a\0',
  'a%2Fb',
  'sérv',
  'a@b',
  '*',
]

test.each(HOSTILE)('%j is neither an id nor a name', (text) => {
  expect([isId(text), isName(text)]).toEqual([false, false])
})

test.each([
  'a',
  '7',
  'srv-x1y2z',
  'i-0123456789abcdef0',
  '1f9a7c3e-52d4-4b8e-9c1a-0d6f2e8b7a90',
  'vm.example_1',
  'A-B_c.9',
])('%s is an id and a name', (text) => expect([isId(text), isName(text)]).toEqual([true, true]))

test('an id has at most 64 characters, and a name, which may be a DNS label, 63', () => {
  expect([63, 64, 65].map((length) => isId('x'.repeat(length)))).toEqual([true, true, false])
  expect([63, 64, 65].map((length) => isName('x'.repeat(length)))).toEqual([true, false, false])
})
