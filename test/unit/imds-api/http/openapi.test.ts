import { expect, test } from 'vitest'
import { Compile } from 'typebox/schema'
import { completeOpenApi } from '../../../../src/imds-api/http/openapi.ts'
import { bodyOf as bodyOfRefusal, fieldFault, noSuch, refuse } from '../../../../src/imds-api/model/refusal.ts'

const bodyOf = (schema: object) => ({ content: { 'application/json': { schema } } })
const named = (kind: string) => (name: string) => ({ $ref: `#/components/${kind}/${name}` })
const [parameter, header] = [named('parameters'), named('headers')]
const ERRORS = { '4XX': { $ref: '#/components/responses/Error' }, '5XX': { $ref: '#/components/responses/Error' } }

const made = {
  openapi: '3.1.0',
  components: { securitySchemes: { token: {} } },
  paths: {
    '/1.0/things': {
      post: { summary: 'Make', requestBody: bodyOf({ required: ['name'] }), responses: { 200: bodyOf({}) } },
    },
    '/1.0/things/{id}': { get: { responses: { 200: bodyOf({}) } } },
    '/1.0/things/{id}/send': { post: { 'x-headers': ['Link'], responses: { 200: {} } } },
    '/token': { post: { requestBody: bodyOf({}), 'x-body': { title: 'TokenRequest' } } },
    '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }] } },
  },
}

test('a document keeps what it has; operations get what follows from their path and method', () => {
  expect(completeOpenApi(made)).toMatchObject({
    openapi: '3.1.0',
    components: { securitySchemes: { token: {} } },
    paths: {
      '/1.0/things': {
        post: {
          summary: 'Make',
          parameters: ['Account', 'IdempotencyKey'].map(parameter),
          requestBody: { required: true },
          responses: ERRORS,
        },
      },
      '/1.0/things/{id}': {
        get: {
          parameters: ['Account', 'IfNoneMatch'].map(parameter),
          responses: {
            200: { headers: { ETag: header('ETag') } },
            304: { $ref: '#/components/responses/NotModified' },
            ...ERRORS,
          },
        },
      },
      '/1.0/things/{id}/send': {
        post: {
          parameters: ['Account', 'IfMatch', 'IdempotencyKey'].map(parameter),
          responses: { 200: { headers: { Link: header('Link') } } },
        },
      },
      '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }] } },
      '/token': {
        post: {
          requestBody: {
            required: true,
            content: { 'application/json': { schema: { $ref: '#/components/schemas/TokenRequest' } } },
          },
          responses: ERRORS,
        },
      },
    },
  })
})

test('the document describes the bodies of errors, with each name and code', () => {
  const { schemas } = (completeOpenApi(made) as unknown as { components: { schemas: Record<string, object> } })
    .components
  const check = Compile({ ...schemas['Error'], components: { schemas } })
  for (const refusal of [
    refuse('bad_request', 'a'),
    noSuch('server', 'cip-abcde'),
    refuse('unprocessable_entity', 'a', fieldFault('servers.0', 'missing', 'b')),
  ])
    expect(check.Check(bodyOfRefusal(refusal, 'req-1'))).toBe(true)
  for (const details of [
    undefined,
    [],
    [{ code: 'missing', message: 'a' }],
    [{ field: 'a', code: 'other', message: 'a' }],
  ])
    expect(check.Check({ error_name: 'bad_request', errors: ['a'], details, request_id: 'req-1' })).toBe(false)
})
