import Type from 'typebox'
import { expect, test } from 'vitest'
import { aBareServer } from '../../../support/fixtures/bare-server.ts'

const JSON_TYPE = 'application/json'
const WRONG_TYPE = 'the Content-Type of the body must be application/json'

async function send(
  payload: string | Buffer,
  headers: Readonly<Record<string, string>> = { 'content-type': JSON_TYPE },
) {
  const server = aBareServer()
  server.post('/things', { schema: { body: Type.Object({ name: Type.Optional(Type.String()) }) } }, ({ body }) => ({
    ownKeys: Object.keys(body),
    name: body.name,
    polluted: (body as { polluted?: unknown }).polluted,
  }))
  const { statusCode: status, body } = await server.inject({ method: 'POST', url: '/things', payload, headers })
  return { status, body: JSON.parse(body) as { errors?: readonly string[] } }
}
const NAMES: Readonly<Record<number, string>> = {
  400: 'bad_request',
  413: 'payload_too_large',
  415: 'unsupported_media_type',
  422: 'unprocessable_entity',
}
const refused = (status: number, text: unknown) => ({ status, body: { error_name: NAMES[status], errors: [text] } })

test.each([
  ['{"__proto__":{"polluted":1},"name":"x"}', ['__proto__', 'name']],
  ['{"constructor":{"prototype":{"polluted":1}},"name":"x"}', ['constructor', 'name']],
])('%s is a body with a parameter that is ignored, and changes no prototype', async (payload, ownKeys) => {
  expect(await send(payload)).toEqual({ status: 200, body: { ownKeys, name: 'x' } })
  expect(({} as { polluted?: unknown }).polluted).toBeUndefined()
})

test.each([
  undefined,
  JSON_TYPE,
  'application/json; charset=utf-16',
  'application/x-www-form-urlencoded',
  'text/plain',
  'application/octet-stream',
  'nonsense',
])('an empty body of type %s is no body', async (type) => {
  const headers = type === undefined ? undefined : { 'content-type': type }
  expect(await send('', { ...headers, 'content-length': '0' })).toEqual({ status: 200, body: { ownKeys: [] } })
  expect(await send('', { ...headers })).toEqual({ status: 200, body: { ownKeys: [] } })
  expect(await send('', { ...headers, 'transfer-encoding': 'chunked', 'content-encoding': 'gzip' })).toEqual({
    status: 200,
    body: { ownKeys: [] },
  })
})

test.each([undefined, 'application/x-www-form-urlencoded', 'text/plain', 'application/jsonp', 'nonsense'])(
  'a body of type %s is refused',
  async (type) => {
    expect(await send('name=x', type === undefined ? {} : { 'content-type': type })).toMatchObject(
      refused(415, WRONG_TYPE),
    )
  },
)

test('malformed JSON is refused with what is wrong', async () => {
  expect(await send('{"name":"x",}')).toMatchObject(
    refused(
      400,
      'the body is malformed: Expected double-quoted property name in JSON at position 12 (line 1 column 13)',
    ),
  )
  expect(await send('{"name":}')).toMatchObject(
    refused(400, 'the body is malformed: Unexpected token \'}\', "{"name":}" is not valid JSON'),
  )
})

test('a body is UTF-8, with or without a byte order mark', async () => {
  expect(await send(Buffer.from('{"name":"\xff"}', 'latin1'))).toMatchObject(refused(400, 'the body is not UTF-8'))
  expect(await send('\u{feff}{"name":"é"}')).toMatchObject({ status: 200, body: { name: 'é' } })
  for (const charset of ['utf-8', 'UTF-8', '"utf-8"', 'utf8']) {
    expect(await send('{"name":"é"}', { 'content-type': `application/json; charset=${charset}` })).toMatchObject({
      status: 200,
      body: { name: 'é' },
    })
  }
  expect(await send('{}', { 'content-type': 'application/json; charset=iso-8859-1' })).toMatchObject(
    refused(415, 'the body must be UTF-8; the charset of its Content-Type is iso-8859-1'),
  )
})

test('a compressed body is refused', async () => {
  expect(await send('x', { 'content-type': JSON_TYPE, 'content-encoding': 'gzip' })).toMatchObject(
    refused(415, 'the body must not be compressed; its Content-Encoding is gzip'),
  )
  expect(await send('{}', { 'content-type': JSON_TYPE, 'content-encoding': 'identity' })).toMatchObject({ status: 200 })
})

test('a body above the limit is refused with the limit', async () => {
  const bodyOf = (bytes: number) => `{"name":"${'x'.repeat(bytes - 11)}"}`
  expect(await send(bodyOf(65_536))).toMatchObject({ status: 200 })
  expect(await send(bodyOf(65_537))).toMatchObject(refused(413, 'the body must be at most 65536 bytes'))
})

test('a body with too many levels or elements is refused before it is parsed', async () => {
  const list = (elements: number) => `{"x":[${Array.from({ length: elements }, () => '0').join(',')}]}`
  expect(await send(`{"x":${'['.repeat(99)}${']'.repeat(99)}}`)).toMatchObject({ status: 200 })
  for (const opening of ['['.repeat(100), '[[],{"a":'.repeat(5_000)])
    expect(await send(`{"x":${opening}`)).toMatchObject(
      refused(422, 'the body must have at most 100 levels of objects and arrays'),
    )
  expect(await send(list(2_000))).toMatchObject({ status: 200 })
  expect(await send(list(2_001))).toMatchObject(
    refused(422, 'the body must have at most 2000 elements in an array, or names in an object'),
  )
  expect(await send(`{"x":"${'[\\",\\\\'.repeat(3_000)}","y":[${'[],'.repeat(1_999)}{}]}`)).toMatchObject({
    status: 200,
  })
  expect(await send(`${']'.repeat(100)},,`)).toMatchObject({ status: 400 })
})

test.each(['[]', '"text"', '1', 'true'])('a body %s is refused: it is no object', async (text) => {
  expect(await send(text)).toMatchObject(refused(422, 'the body must be a JSON object'))
})

test('a body null is refused, with and without white space', async () => {
  for (const text of ['null', ' null\n'])
    expect(await send(text)).toMatchObject(refused(400, 'the body must be a JSON object; it is null'))
})
