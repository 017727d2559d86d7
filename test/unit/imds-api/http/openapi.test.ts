import { expect, test } from 'vitest'
import { Compile } from 'typebox/schema'
import { completeOpenApi } from '../../../../src/imds-api/http/openapi.ts'
import {
  bodyOf as bodyOfRefusal,
  fieldFault,
  noSuch,
  refuse,
  type Refusal,
} from '../../../../src/imds-api/model/refusal.ts'

const bodyOf = (schema: object) => ({ content: { 'application/json': { schema } } })
const named = (kind: string) => (name: string) => ({ $ref: `#/components/${kind}/${name}` })
const [parameter, response, header] = [named('parameters'), named('responses'), named('headers')]

const made = {
  openapi: '3.1.0',
  components: { securitySchemes: { token: {} } },
  paths: {
    '/1.0/things': {
      post: { summary: 'Make', requestBody: bodyOf({ required: ['name'] }), responses: { 200: bodyOf({}) } },
    },
    '/1.0/things/{id}': { get: { responses: { 200: bodyOf({}) } } },
    '/1.0/things/{id}/send': {
      post: { 'x-refusals': ['too_many_requests'], 'x-headers': ['Link'], responses: { 200: {} } },
    },
    '/token': { post: { requestBody: bodyOf({}), 'x-body': { title: 'TokenRequest' } } },
    '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }] } },
  },
}

test('a document keeps what it has, and each operation gets the parameters of its path and method', () => {
  const { openapi, components, paths } = completeOpenApi(made, ['x-otp'])
  expect({ openapi, components }).toMatchObject({ openapi: '3.1.0', components: { securitySchemes: { token: {} } } })
  expect(paths).toMatchObject({
    '/1.0/things': {
      post: {
        summary: 'Make',
        parameters: ['Account', 'RequestId', 'IdempotencyKey'].map(parameter),
        requestBody: { required: true },
      },
    },
    '/1.0/things/{id}': { get: { parameters: ['Account', 'RequestId', 'IfNoneMatch'].map(parameter) } },
    '/1.0/things/{id}/send': {
      post: { parameters: ['Account', 'RequestId', 'IfMatch', 'IdempotencyKey'].map(parameter) },
    },
    '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }, ...['RequestId'].map(parameter)] } },
  })
  expect(paths['/token'].post).toMatchObject({ parameters: [{ name: 'x-otp', in: 'header' }] })
})

test('each operation has the errors and headers of its path and method, and those that its route names', () => {
  const { paths } = completeOpenApi(made, ['x-otp'])
  expect(paths['/1.0/things/{id}'].get.responses).toMatchObject({
    200: { headers: { 'X-Request-Id': header('X-Request-Id'), ETag: header('ETag') } },
    304: response('NotModified'),
    404: response('NotFound'),
    default: response('Error'),
  })
  expect(paths['/1.0/things/{id}'].get.responses).not.toHaveProperty('409')
  const { responses } = paths['/1.0/things/{id}/send'].post
  expect(responses).toMatchObject({
    200: { headers: { Link: header('Link'), RateLimit: header('RateLimit') } },
    409: response('Conflict'),
    412: response('PreconditionFailed'),
    429: response('TooManyRequests'),
  })
  expect(Object.keys(paths['/1.0/things/{id}/send'].post)).not.toContain('x-refusals')
  expect(paths['/token'].post).toMatchObject({
    requestBody: {
      required: true,
      content: { 'application/json': { schema: { $ref: '#/components/schemas/TokenRequest' } } },
    },
    responses: { 401: response('TokenUnauthorized') },
  })
})

test('the document describes the bodies of errors, with the names of each status and each code', () => {
  const { schemas } = (
    completeOpenApi(made, ['x-otp']) as unknown as { components: { schemas: Record<string, object> } }
  ).components
  const allows = (schema: string, refusal: Refusal) =>
    Compile({ ...schemas[schema], components: { schemas } }).Check(bodyOfRefusal(refusal, 'req-1'))
  const refusals = [
    refuse('bad_request', 'a'),
    noSuch('server', 'cip-abcde'),
    refuse('unprocessable_entity', 'a', fieldFault('servers.0', 'missing', 'b')),
  ] as const
  for (const refusal of refusals) expect(allows('Error', refusal)).toBe(true)
  expect(refusals.map((refusal) => allows('NotFoundError', refusal))).toStrictEqual([false, true, false])
  const check = Compile({ ...schemas['Error'], components: { schemas } })
  for (const details of [
    undefined,
    [],
    [{ code: 'missing', message: 'a' }],
    [{ field: 'a', code: 'other', message: 'a' }],
  ]) {
    expect(check.Check({ error_name: 'bad_request', errors: ['a'], details, request_id: 'req-1' })).toBe(false)
  }
})
