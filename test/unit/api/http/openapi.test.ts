import { expect, test } from 'vitest'
import { Compile } from 'typebox/schema'
import { completeOpenApi } from '../../../../src/api/http/openapi.ts'
import { bodyOf as bodyOfRefusal, fieldFault, noSuch, refuse } from '../../../../src/api/model/refusal.ts'

const bodyOf = (schema: object) => ({ content: { 'application/json': { schema } } })

test('a document keeps what it has, and gets errors, account_id, and bodies that may be empty', () => {
  const made = {
    openapi: '3.1.0',
    components: { schemas: { Own: {} } },
    paths: {
      '/1.0/things': { post: { summary: 'Make', requestBody: bodyOf({ required: ['name'] }), responses: { 200: {} } } },
      '/token': { post: { requestBody: bodyOf({}) } },
      '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }] } },
    },
  }
  const document = completeOpenApi(made)
  const responses = { default: { content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } } } }
  expect(document).toMatchObject({
    openapi: '3.1.0',
    components: { schemas: { Own: {}, Error: { type: 'object' } } },
    paths: {
      '/1.0/things': {
        post: {
          summary: 'Make',
          parameters: [
            { name: 'account_id', in: 'query' },
            { name: 'Prefer', in: 'header' },
            { name: 'X-Request-Id', in: 'header' },
            { name: 'Idempotency-Key', in: 'header' },
          ],
          requestBody: { required: true },
          responses: { 200: { headers: { 'X-Request-Id': {} } }, ...responses },
        },
      },
      '/token': { post: { requestBody: { required: false }, responses } },
      '/1.0/user/collaborations': {
        get: { parameters: [{ name: 'x' }, { name: 'Prefer' }, { name: 'X-Request-Id' }], responses },
      },
    },
  })
  expect(document.paths['/token'].post).not.toHaveProperty('parameters')
})

test('the document describes the bodies of errors, with each code', () => {
  const { components } = completeOpenApi({ components: {} }) as { components: { schemas: { Error: object } } }
  const check = Compile(components.schemas.Error)
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
  ]) {
    expect(check.Check({ error_name: 'bad_request', errors: ['a'], details, request_id: 'req-1' })).toBe(false)
  }
})
