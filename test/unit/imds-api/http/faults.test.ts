import Type from 'typebox'
import { expect, test } from 'vitest'
import { formatFaults } from '../../../../src/imds-api/http/faults.ts'
import { aBareServer } from '../../../support/fixtures/bare-server.ts'

const OrNull = Type.Union([Type.String({ maxLength: 5, format: 'line' }), Type.Null()])
const Port = Type.Union([
  Type.Integer({ minimum: 1, maximum: 9 }),
  Type.String({ pattern: '^[0-9]$', hint: 'a digit' }),
])
const Choice = Type.Union([Type.Literal('a'), Type.Literal('b'), Type.Null()])
const Host = Type.Union([Type.Null(), Type.Literal(''), Type.String({ format: 'pointer-name' })])
const Ids = Type.Array(Type.Union([Type.String(), Type.Object({ id: Type.String() })]))
const Tags = Type.Record(Type.String(), Type.String({ maxLength: 2 }), {
  maxProperties: 1,
  propertyNames: { maxLength: 3 },
})

async function faultsOf(schema: Type.TSchema, body: unknown) {
  const server = aBareServer()
  server.post('/things', { schema: { body: schema } }, () => ({}))
  const answer = await server.inject({
    method: 'POST',
    url: '/things',
    payload: JSON.stringify(body),
    headers: { 'content-type': 'application/json' },
  })
  return (JSON.parse(answer.body) as { errors?: readonly string[] }).errors
}

test.each<[Type.TSchema, unknown, string]>([
  [Type.String(), 1, 'must be a string'],
  [Type.Integer(), 1.5, 'must be an integer'],
  [Type.Boolean(), 'x', 'must be a boolean'],
  [Type.Array(Type.String()), {}, 'must be an array'],
  [Type.Object({}), [], 'must be an object'],
  [Type.String({ minLength: 1 }), '', 'must not be empty'],
  [Type.String({ minLength: 2 }), 'x', 'must have at least 2 characters'],
  [Type.Integer({ minimum: 1 }), 0, 'must be at least 1'],
  [Type.Integer({ maximum: 1 }), 2, 'must be at most 1'],
  [Type.Array(Type.String(), { maxItems: 1 }), ['', ''], 'must have at most 1 elements'],
  [Type.String({ pattern: '^x$' }), '', 'has the wrong form'],
  [Type.Enum(['a', 'b']), 1, 'must be "a" or "b"'],
  [OrNull, 1, 'must be a string or null'],
  [OrNull, 'x'.repeat(6), 'must have at most 5 characters'],
  [OrNull, 'xxxxx\n', 'must have at most 5 characters and must be one line without control characters'],
  [Port, 0, 'must be from 1 to 9'],
  [Port, 10, 'must be from 1 to 9'],
  [Port, 'x', 'must be a digit'],
  [Port, {}, 'must be an integer or a string'],
  [Choice, 'c', 'must be "a" or "b" or null'],
  [Choice, 1, 'must be "a" or "b" or null'],
  [Host, '-', 'must be a host name such as www.example.com, in ASCII'],
  [Host, 1, 'must be null or "" or a string'],
  [Tags, { abcd: '' }, 'has a key that must have at most 3 characters'],
  [Tags, { a: '', b: '' }, 'must have at most 1 keys'],
])('a value that is not of %j: %j %s', async (schema, value, text) => {
  expect(await faultsOf(Type.Object({ place: schema }), { place: value })).toEqual([`place ${text}`])
})

test('each fault has its place, and the body is one too', async () => {
  expect(await faultsOf(Type.Object({}), [])).toEqual(['the body must be a JSON object'])
  expect(await faultsOf(Type.Object({ ids: Ids }), { ids: [{}, { id: 1 }, 2] })).toEqual([
    'ids.0.id is missing',
    'ids.1.id must be a string',
    'ids.2 must be a string or an object',
  ])
  expect(
    await faultsOf(Type.Object({ a: Type.Array(Type.Object({ b: Type.String() })), tags: Tags }), {
      a: [{}, { b: 1 }, 2],
      tags: { 'a/~': 1 },
    }),
  ).toEqual(['a.0.b is missing', 'a.1.b must be a string', 'a.2 must be an object', 'tags.a/~ must be a string'])
})

test('of a million faults only the first are read, because each takes time', () => {
  const faults = Array.from({ length: 1_000_000 }, (_, i) => ({
    keyword: 'type',
    instancePath: `/list/${i}`,
    schemaPath: '',
    params: { type: 'string' },
  }))
  expect(formatFaults(faults)).toHaveLength(1_000)
})
