import Fastify from 'fastify'
import { expect, test } from 'vitest'
import { NO_SCHEMA_COMPILERS } from '../../../src/runtime/fastify-settings.ts'

test('a server without schemas starts, and a route with a schema is refused at the start', async () => {
  const plain = Fastify({ schemaController: NO_SCHEMA_COMPILERS })
  plain.get('/', () => 'x')
  expect((await plain.inject('/')).body).toBe('x')
  for (const schema of [{ querystring: { type: 'object' } }, { response: { 200: { type: 'string' } } }]) {
    const server = Fastify({ schemaController: NO_SCHEMA_COMPILERS })
    server.get('/', { schema }, () => 'x')
    await expect(server.ready()).rejects.toThrow('no route has a schema')
  }
})
