import { expect, test } from 'vitest'
import { BODY_MAX_BYTES, DATA_MAX_BYTES, parseData } from '../../../../src/api/model/config-data.ts'

/** A body whose data is so many bytes long, in characters of two bytes and one. */
const bodyOf = (bytes: number, character = 'x') => `{"data":{"ü":"${character.repeat(bytes - '{"ü":""}'.length - 1)}"}}`

test('data is taken as it was sent, without white space', () => {
  expect(parseData('{"name": "a", "data": {"b": 1.0, "a": [12345678901234567890]}}')).toEqual({ ok: true, text: '{"b":1.0,"a":[12345678901234567890]}' })
})

test('the limit counts bytes of UTF-8, not characters and not escapes', () => {
  expect(parseData(bodyOf(DATA_MAX_BYTES))).toMatchObject({ ok: true })
  expect(parseData(bodyOf(DATA_MAX_BYTES, '\\u0061'))).toMatchObject({ ok: true })
  expect(parseData(bodyOf(DATA_MAX_BYTES + 1))).toEqual({ ok: false, fault: 'data must be at most 1048576 bytes; it is 1048577' })
  expect(parseData(bodyOf(DATA_MAX_BYTES + 1, '\\u0061'))).toEqual({ ok: false, fault: 'data must be at most 1048576 bytes; it is 1048577' })
  expect(parseData(`{"data":{"a":"${'€'.repeat(349_523)}"}}`)).toEqual({ ok: false, fault: 'data must be at most 1048576 bytes; it is 1048577' })
})

test.each([
  ['repeated keys', `{"data":{${'"a":1,'.repeat(DATA_MAX_BYTES / 6)}"b":1}}`, 1_048_579],
  ['a long number', `{"data":{"a":1${'0'.repeat(DATA_MAX_BYTES)}}}`, 1_048_583],
])('the limit counts what is stored: %s', (_, body, bytes) => {
  expect(parseData(body)).toEqual({ ok: false, fault: `data must be at most 1048576 bytes; it is ${String(bytes)}` })
})

test('data within the limit fits into a body with each character as an escape', () => {
  expect(bodyOf(DATA_MAX_BYTES, '\\u0061').length).toBeLessThan(BODY_MAX_BYTES)
})

test('data has at most 99 levels', () => {
  const nested = (levels: number) => `{"data":${'{"a":'.repeat(levels - 1)}{}${'}'.repeat(levels - 1)}}`
  expect(parseData(nested(99))).toMatchObject({ ok: true })
  expect(parseData(nested(100))).toEqual({ ok: false, fault: 'data must have at most 99 levels of objects and arrays; it has 100' })
})
