import { pino } from 'pino'
import Type from 'typebox'
import { expect, test } from 'vitest'
import { refuse } from '../../../../src/imds-api/model/refusal.ts'
import { MAX_HEADERS, MAX_PARAMETERS } from '../../../../src/imds-api/http/head.ts'
import { DatabaseReport } from '../../../../src/imds-api/http/database-errors.ts'
import { buildServer } from '../../../../src/imds-api/http/server.ts'
import { withoutDetails } from '../../../support/error-bodies.ts'

const Body = Type.Object({
  name: Type.String({ maxLength: 5 }),
  kind: Type.Optional(Type.Union([Type.Literal('a'), Type.Literal('b'), Type.Null()])),
  list: Type.Optional(Type.Array(Type.Object({ port: Type.Integer() }))),
})

function aServer(thrown?: unknown) {
  const lines: Record<string, unknown>[] = []
  const log = pino(
    {},
    {
      write: (line) => lines.push(JSON.parse(line) as Record<string, unknown>),
    },
  )
  const server = buildServer({
    tls: undefined,
    trustedProxies: ['127.0.0.1'],
    onUnreadable: () => undefined,
    onShed: () => undefined,
    databaseReport: new DatabaseReport(log),
    log,
  })
  server.post('/things', { schema: { body: Body } }, (request, reply) => reply.code(201).send(request.body))
  server.get('/things/:id', () => {
    throw refuse('resource_conflict', 'busy')
  })
  server.get('/throws', () => {
    throw thrown
  })
  server.get('/ip', ({ address }) => ({ ip: address }))
  return { server, lines }
}

async function post(payload: string, type: string | undefined = 'application/json') {
  const { statusCode, body } = await aServer().server.inject({
    method: 'POST',
    url: '/things',
    payload,
    headers: { 'content-type': type },
  })
  return { status: statusCode, body: withoutDetails(JSON.parse(body)) }
}

test('all faults of a body are named, one a place; a union names its alternatives', async () => {
  expect(await post('{"kind":"c","list":[{"port":"x"},1,{}]}')).toEqual({
    status: 422,
    body: {
      error_name: 'unprocessable_entity',
      errors: [
        'name is missing',
        'kind must be "a" or "b" or null',
        'list.0.port must be an integer',
        'list.1 must be an object',
        'list.2.port is missing',
      ],
    },
  })
  expect(await post('{"name":"too long"}')).toMatchObject({ body: { errors: ['name must have at most 5 characters'] } })
  expect(await post('[]')).toMatchObject({ body: { errors: ['the body must be a JSON object'] } })
})

test('the first faults of a body with very many are named', async () => {
  const { status, body } = await post(JSON.stringify({ name: '', list: Array.from({ length: 2_000 }, () => ({})) }))
  expect([status, (body as { errors: string[] }).errors.slice(-2)]).toEqual([
    422,
    ['list.99.port is missing', 'and more'],
  ])
})

test('text that PostgreSQL cannot store is a fault of its field, beside the others, and 404 in a path', async () => {
  expect(await post('{"name":"a\\u0000","list":1}')).toMatchObject({
    status: 422,
    body: {
      errors: ['name must not contain the character U+0000 or half of a surrogate pair', 'list must be an array'],
    },
  })
  expect(await post('{"name":"\\ud800","unknown":"\\u0000"}')).toMatchObject({
    status: 422,
    body: { errors: [expect.stringMatching(/^name must not/)] },
  })
  expect(await post('{"name":"😀","unknown":"\\u0000"}')).toMatchObject({ status: 201 })
  const { server } = aServer()
  server.get('/named/:id', { schema: { params: Type.Object({ id: Type.String() }) } }, () => ({}))
  const { statusCode, body } = await server.inject('/named/%00')
  expect([statusCode, withoutDetails(JSON.parse(body))]).toEqual([
    404,
    { error_name: 'resource_not_found', errors: ['there is no /named/%00'] },
  ])
})

test('each fault of a body has its place and its code, for programs', async () => {
  const { server } = aServer()
  const { body } = await server.inject({
    method: 'POST',
    url: '/things',
    payload: '{"name":"too long","kind":"c","list":[{"port":"x"},1,{}]}',
    headers: { 'content-type': 'application/json' },
  })
  expect(
    (JSON.parse(body) as { details: { field: string; code: string }[] }).details.map(
      ({ field, code }) => `${field} ${code}`,
    ),
  ).toEqual(['name too_long', 'kind not_allowed', 'list.0.port wrong_type', 'list.1 wrong_type', 'list.2.port missing'])
})

test('values are not converted, unknown parameters stay out of the way, and an empty body is an object', async () => {
  expect(await post('{"name":1}')).toMatchObject({ status: 422, body: { errors: ['name must be a string'] } })
  expect(await post('{"name":"a","more":1}')).toEqual({ status: 201, body: { name: 'a', more: 1 } })
  expect(await post('')).toMatchObject({ status: 422, body: { errors: ['name is missing'] } })
})

test('a refusal that a handler answers has its status', async () => {
  const { statusCode, body } = await aServer().server.inject('/things/a')
  expect([statusCode, withoutDetails(JSON.parse(body))]).toEqual([
    409,
    { error_name: 'resource_conflict', errors: ['busy'] },
  ])
})

test('QUERY is 405 with Allow, or 404, with and without a Content-Type', async () => {
  const { server } = aServer()
  const send = async (url: string, headers: Readonly<Record<string, string>>) => {
    const { statusCode, headers: sent } = await server.inject({ method: 'QUERY' as 'GET', url, headers, payload: '{}' })
    return [statusCode, sent.allow]
  }
  for (const headers of [{}, { 'content-type': 'application/json' }] as const) {
    expect(await send('/things/a', headers)).toEqual([405, 'GET, HEAD'])
    expect(await send('/other', headers)).toEqual([404, undefined])
  }
})

test('a method that a path lacks is 405, a path that does not exist 404', async () => {
  const { server } = aServer()
  const [method, path] = [
    await server.inject({ method: 'PUT', url: '/things/a/?b=/c' }),
    await server.inject('/other?x'),
  ]
  expect([method.statusCode, method.headers.allow, withoutDetails(method.json())]).toEqual([
    405,
    'GET, HEAD',
    { error_name: 'method_not_allowed', errors: ['PUT is not one of GET, HEAD'] },
  ])
  expect([path.statusCode, withoutDetails(path.json())]).toEqual([
    404,
    { error_name: 'resource_not_found', errors: ['there is no /other'] },
  ])
})

const AWAY = 'the database is unreachable: try again'
const FULL = 'the database has no room for this: try again'
const CONCURRENT = 'the database has refused this because of other requests at the same time: try again'
/** The line in the log, by the text of the response. A condition has that of a database that is away. */
const LOGGED = new Map([
  ['unexpected error', 'unexpected error: the request was answered 500'],
  [FULL, 'the database has no disk space, memory or connections left: requests are answered 503'],
  [CONCURRENT, 'the database has refused a request because of others at the same time: it is answered 503'],
])

test.each([
  [new Error('a secret'), 500, 'internal_server_error', 'unexpected error'],
  [new Error('Connection terminated unexpectedly'), 503, 'service_unavailable', AWAY],
  ...['ECONNREFUSED', '25006', '57P01', '08006', '25P03'].map(
    (code) => [code, 503, 'service_unavailable', AWAY] as const,
  ),
  ...['53100', '53300', '58030'].map((code) => [code, 503, 'service_unavailable', FULL] as const),
  ['40P01', 503, 'service_unavailable', CONCURRENT],
  ['23505', 500, 'internal_server_error', 'unexpected error'],
  ['22021', 422, 'unprocessable_entity', 'text must not contain the character U+0000'],
] as const)('%s is %d, without details', async (thrown, status, error_name, text) => {
  const error = typeof thrown === 'string' ? Object.assign(new Error('x'), { code: thrown }) : thrown
  const { server, lines } = aServer(error)
  const { statusCode, headers, body } = await server.inject('/throws')
  expect([statusCode, withoutDetails(JSON.parse(body))]).toEqual([status, { error_name, errors: [text] }])
  expect(headers['retry-after']).toBe(status === 503 ? '1' : undefined)
  expect(lines.map(({ msg }) => msg)).toEqual([LOGGED.get(text)].filter((line) => line !== undefined))
})

test('a response has the id of its request, and so have its error and its line in the log', async () => {
  const { server, lines } = aServer(new Error('a secret'))
  const given = { 'x-request-id': 'job-42' }
  for (const url of ['/ip', '/throws', '/things/a', '/nothing', '/%zz', `/things/${'x'.repeat(200)}`]) {
    const { headers, body } = await server.inject({ url, headers: given })
    expect(headers['x-request-id']).toBe('job-42')
    if (url !== '/ip') expect(JSON.parse(body)).toMatchObject({ request_id: 'job-42' })
  }
  expect(lines).toMatchObject([{ request_id: 'job-42' }])
  const { headers, body } = await server.inject('/nothing')
  expect([headers['x-request-id']]).toEqual([(JSON.parse(body) as { request_id: string }).request_id])
})

test('a trusted proxy names the address of the client', async () => {
  const { body } = await aServer().server.inject({ url: '/ip', headers: { 'x-forwarded-for': '192.0.2.1' } })
  expect(JSON.parse(body)).toEqual({ ip: '192.0.2.1' })
})

test('a query of more parameters than the limit is refused, and its rest is not parsed', async () => {
  const { server } = aServer()
  const parsed: number[] = []
  server.addHook('onResponse', (request, _reply, done) => {
    parsed.push(Object.keys(request.query as object).length)
    done()
  })
  const ask = async (count: number) => {
    const query = Array.from({ length: count }, (_, n) => `p${n}=%61`).join('&')
    return (await server.inject(`/ip?${query}`)).statusCode
  }
  expect([await ask(MAX_PARAMETERS), await ask(MAX_PARAMETERS + 1), await ask(2_000)]).toEqual([200, 400, 400])
  expect(parsed).toEqual([MAX_PARAMETERS, MAX_PARAMETERS, MAX_PARAMETERS])
})

test('a request of more headers than the limit is refused', async () => {
  const ask = async (count: number) => {
    const headers = Object.fromEntries(Array.from({ length: count }, (_, n) => [`x-${n}`, '']))
    const { statusCode, body } = await aServer().server.inject({ url: '/ip', headers })
    return [statusCode, (JSON.parse(body) as { error_name?: string }).error_name]
  }
  const own = 2 // inject adds Host and User-Agent
  expect(await ask(MAX_HEADERS - own)).toEqual([200, undefined])
  expect(await ask(MAX_HEADERS - own + 1)).toEqual([431, 'header_fields_too_large'])
})
