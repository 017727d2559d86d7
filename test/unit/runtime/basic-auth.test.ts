import { expect, test } from 'vitest'
import { formDecoded, parseBasic } from '../../../src/runtime/basic-auth.ts'

const encode = (text: string) => Buffer.from(text).toString('base64')

test.each([
  [`Basic ${encode('cli-aaaaa:secret')}`, 'cli-aaaaa', 'secret'],
  [`basic   ${encode('a:b:c')} `, 'a', 'b:c'],
  [`BASIC ${encode(':')}`, '', ''],
  [`Basic ${encode('ü:ß')}`, 'ü', 'ß'],
])('%s has credentials', (header, id, secret) => expect(parseBasic(header)).toEqual({ id, secret }))

test.each([
  undefined,
  '',
  'Basic',
  'Basic ',
  `Bearer ${encode('a:b')}`,
  `Basic ${encode('ab')}`,
  'Basic a:b',
  `Basic ${encode('a:b')} x`,
  `Basic ${encode('a\0:b')}`,
  `Basic ${encode('a:b\n')}`,
])('%j has none', (header) => expect(parseBasic(header)).toBeUndefined())

test.each([
  ['a%2Fb%2Bc%3Dd', 'a/b+c=d'],
  ['a+b', 'a b'],
  ['%C3%BC', 'ü'],
  ['plain', 'plain'],
  ['100%', '100%'],
  ['%ff', '%ff'],
])('%s form-decoded', (text, decoded) => expect(formDecoded(text)).toBe(decoded))
