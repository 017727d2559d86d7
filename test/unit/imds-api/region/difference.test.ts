import { expect, test } from 'vitest'
import { changedColumns, describeChanges } from '../../../../src/imds-api/region/difference.ts'

const row = (columns: object) => columns as Record<string, unknown>

test.each<[string, unknown, unknown, boolean]>([
  ['a text', 'a', 'b', true],
  ['the same number', 1, 1, false],
  ['null and a text', 'a', null, true],
  ['the same time', new Date(0), new Date(0), false],
  ['another time', new Date(0), new Date(1), true],
  ['the same bytes', Buffer.from('a'), Buffer.from('a'), false],
  ['other bytes', Buffer.from([0xff]), Buffer.from([0xfe]), true],
  ['the same list', ['a', 'b'], ['a', 'b'], false],
  ['another list', ['a', 'b'], ['b', 'a'], true],
])('%s is compared by value', (_, wanted, current, isChanged) => {
  const columns = changedColumns(row({ id: 'x', value: wanted }), row({ id: 'x', value: current, more: 1 }), [])
  expect(columns).toEqual(isChanged ? ['value'] : [])
})

test('a column that keeps its value does not count, and the order is that of the wanted row', () => {
  expect(changedColumns(row({ c: 1, a: 1, b: 1 }), row({ a: 2, b: 2, c: 2 }), ['a'])).toEqual(['c', 'b'])
})

test('a description shows no secret', () => {
  const columns = ['ram', 'secret_sha256', 'secret_file_sha256', 'password_hash', 'totp_secret', 'verified_at']
  const values = (value: unknown) => row(Object.fromEntries(columns.map((column) => [column, value])))
  expect(
    describeChanges(columns, values('hidden-1'), values('hidden-2')).replaceAll(/\w+ hidden-1 -> hidden-2/g, ''),
  ).toBe(', secret, password_hash, totp_secret, ')
  expect(describeChanges(['ram', 'handle'], row({ ram: 1024, handle: null }), row({ ram: 2048, handle: 'a' }))).toBe(
    'ram 1024 -> 2048, handle null -> a',
  )
})
