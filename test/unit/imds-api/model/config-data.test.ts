import { expect, test } from 'vitest'
import {
  BODY_BOUNDS,
  MAX_BODY_BYTES,
  MAX_DATA_BYTES,
  dataFault,
  parseBody,
} from '../../../../src/imds-api/model/config-data.ts'
import { boundsFault } from '../../../../src/imds-api/model/json-text.ts'
import { TurnBudget } from '../../../../src/limits/turn-budget.ts'

const budget = new TurnBudget()
/** A body whose data is so many bytes long, in characters of two bytes and one. */
const bodyOf = (bytes: number, character = 'x') => `{"data":{"ü":"${character.repeat(bytes - '{"ü":""}'.length - 1)}"}}`
const faultOf = async (body: string) => dataFault(((await parseBody(body, budget)) as { data: { text: string } }).data)

test('data is taken as it was sent, without white space; other members are named, and not read', async () => {
  expect(
    await parseBody(
      '{"name": "a", "data": {"b": 1.0, "a": [12345678901234567890]}, "x": [[1]], "__proto__": 1}',
      budget,
    ),
  ).toEqual(
    Object.fromEntries([
      ['name', 'a'],
      ['data', { text: '{"b":1.0,"a":[12345678901234567890]}' }],
      ['x', undefined],
      ['__proto__', undefined],
    ]),
  )
})

test.each([
  ['[{}]', []],
  [' "text"', 'text'],
  ['null', null],
  ['{"data":[1]}', { data: [] }],
  ['{"data":null,"name":{"a":1}}', { data: null, name: {} }],
  ['{"data":-1}', { data: -1 }],
  ['{}', {}],
])('%s is of the type that JSON.parse gives', async (body, value) => {
  expect(await parseBody(body, budget)).toEqual(value)
})

test('a body that is no JSON is a SyntaxError, in every member', async () => {
  for (const body of ['{"data":{},}', '{"x":[}', '{"data":{"a":tru}}', '{', '{}{}'])
    await expect(parseBody(body, budget)).rejects.toThrow(SyntaxError)
})

test('the limit counts bytes of UTF-8, not characters and not escapes', async () => {
  expect(await faultOf(bodyOf(MAX_DATA_BYTES))).toBeUndefined()
  expect(await faultOf(bodyOf(MAX_DATA_BYTES, '\\u0061'))).toBeUndefined()
  expect(await faultOf(bodyOf(MAX_DATA_BYTES + 1))).toBe('data must be at most 1048576 bytes; it is 1048577')
  expect(await faultOf(bodyOf(MAX_DATA_BYTES + 1, '\\u0061'))).toBe('data must be at most 1048576 bytes; it is 1048577')
  expect(await faultOf(`{"data":{"a":"${'€'.repeat(349_523)}"}}`)).toBe(
    'data must be at most 1048576 bytes; it is 1048577',
  )
})

test.each([
  ['repeated keys', `{"data":{${'"a":1,'.repeat(MAX_DATA_BYTES / 6)}"b":1}}`, 1_048_579],
  ['a long number', `{"data":{"a":1${'0'.repeat(MAX_DATA_BYTES)}}}`, 1_048_583],
])('the limit counts what is stored: %s', async (_, body, bytes) => {
  expect(await faultOf(body)).toBe(`data must be at most 1048576 bytes; it is ${bytes}`)
})

test('data within the limit fits into a body, also as escapes, and as one token for each byte', async () => {
  expect(bodyOf(MAX_DATA_BYTES, '\\u0061').length).toBeLessThan(MAX_BODY_BYTES)
  const most = `{"data":{"":[${'1,'.repeat((MAX_DATA_BYTES - 8) / 2)}1]},"name":"a"}`
  expect(await faultOf(most)).toBeUndefined()
  expect(await boundsFault(most, BODY_BOUNDS, budget)).toBeUndefined()
  expect(await boundsFault(`{"data":{},"x":[${'1,'.repeat(540_000)}1]}`, BODY_BOUNDS, budget)).toBe(
    'must have at most 1064960 names, values and punctuation marks',
  )
  expect(await boundsFault(`{${'"":1,'.repeat(2_000)}"data":{}}`, BODY_BOUNDS, budget)).toBe(
    'must have at most 2000 elements in an array, or names in an object',
  )
})

test('data has at most 99 levels', async () => {
  const nested = (levels: number) => `{"data":${'{"a":'.repeat(levels - 1)}{}${'}'.repeat(levels - 1)}}`
  expect(await boundsFault(nested(99), BODY_BOUNDS, budget)).toBeUndefined()
  expect(await parseBody(nested(99), budget)).toMatchObject({ data: {} })
  expect(await boundsFault(nested(100), BODY_BOUNDS, budget)).toBe('must have at most 100 levels of objects and arrays')
})
