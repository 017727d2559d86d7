import { expect, test } from 'vitest'
import { completeOpenApi } from '../../../src/api/openapi.ts'

const bodyOf = (schema: object) => ({ content: { 'application/json': { schema } } })

test('a document keeps what it has, and gets errors, account_id, and bodies that may be empty', () => {
  const made = {
    openapi: '3.1.0', components: { schemas: { Own: {} } },
    paths: {
      '/1.0/things': { post: { summary: 'Make', requestBody: bodyOf({ required: ['name'] }), responses: { 200: {} } } }, '/token': { post: { requestBody: bodyOf({}) } },
      '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }] } },
    },
  }
  const document = completeOpenApi(made)
  const responses = { default: { content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } } } }
  expect(document).toMatchObject({
    openapi: '3.1.0', components: { schemas: { Own: {}, Error: { type: 'object' } } },
    paths: {
      '/1.0/things': { post: { summary: 'Make', parameters: [{ name: 'account_id', in: 'query' }, { name: 'Prefer', in: 'header' }], requestBody: { required: true }, responses: { 200: {}, ...responses } } },
      '/token': { post: { requestBody: { required: false }, responses } }, '/1.0/user/collaborations': { get: { parameters: [{ name: 'x' }, { name: 'Prefer' }], responses } },
    },
  })
  expect(document.paths['/token'].post).not.toHaveProperty('parameters')
})
