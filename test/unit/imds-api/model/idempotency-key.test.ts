import { expect, test } from 'vitest'
import { parseIdempotencyKey } from '../../../../src/imds-api/model/idempotency-key.ts'

test('a key is a quoted string, or bare text of safe characters, and both forms of it are one key', () => {
  for (const [header, key] of [
    ['"8e03978e-40d5-43dd-bc93-6894a57f9324"', '8e03978e-40d5-43dd-bc93-6894a57f9324'],
    ['8e03978e-40d5-43dd-bc93-6894a57f9324', '8e03978e-40d5-43dd-bc93-6894a57f9324'],
    ['"create web, 1"', 'create web, 1'],
    ['"a\\"b\\\\c"', 'a"b\\c'],
    ['ab/c+d==', 'ab/c+d=='],
    [`"${'x'.repeat(255)}"`, 'x'.repeat(255)],
  ] as const)
    expect(parseIdempotencyKey(header)).toBe(key)
})

test('any other key is malformed: empty, too long, two keys, parameters, control or other characters', () => {
  for (const header of ['', '""', 'a b', '"a', 'a"', '"a";b=1', 'a, b', '"a", "b"', '"\\a"', '"é"', '"\t"'])
    expect(parseIdempotencyKey(header)).toBeUndefined()
  expect(parseIdempotencyKey('x'.repeat(256))).toBeUndefined()
  expect(parseIdempotencyKey(`"${'\\"'.repeat(256)}"`)).toBeUndefined()
})
