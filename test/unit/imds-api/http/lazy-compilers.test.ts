import { fastify } from 'fastify'
import { expect, test } from 'vitest'
import { buildLazyCompilers, lazily, withNullable } from '../../../../src/imds-api/http/lazy-compilers.ts'
import { STORABLE_KEYWORD } from '../../../../src/imds-api/model/storable-text.ts'

test('a schema is compiled at its first use, and once', () => {
  const log: string[] = []
  const factory = lazily((settings: string) => {
    log.push(`factory ${settings}`)
    return (route: string) => {
      log.push(`compile ${route}`)
      return Object.assign((data: string) => data.toUpperCase(), { errors: [route] })
    }
  })
  const compile = factory('x' as never)
  const [first, second] = [compile('a' as never), compile('b' as never)]
  expect(log).toEqual([])
  expect([first('1' as never), first('2' as never), second('c' as never)]).toEqual(['1', '2', 'C'])
  expect([first.errors, second.errors]).toEqual([['a'], ['b']])
  expect(log).toEqual(['factory x', 'compile a', 'compile b'])
})

test('a server with them validates bodies and writes responses by their schemas', async () => {
  const server = fastify({
    schemaController: { compilersFactory: buildLazyCompilers() },
    ajv: { customOptions: { allErrors: true, coerceTypes: false, keywords: [STORABLE_KEYWORD] } },
  })
  const response = { type: 'object', properties: { name: { type: 'string' } } }
  const body = {
    type: 'object',
    required: ['name'],
    properties: { name: { type: 'string' }, age: { type: 'integer' } },
  }
  server.post('/', { schema: { body, response: { 200: response } } }, () => ({ name: 'a', secret: 'b' }))
  const send = async (payload: object) =>
    (await server.inject({ method: 'POST', url: '/', payload })).json<{ message?: string }>()
  expect(await send({ name: 'a' })).toEqual({ name: 'a' })
  expect((await send({ age: 'x' })).message).toBe("body must have required property 'name', body/age must be integer")
  expect((await send({ name: 1 })).message).toBe('body/name must be string')
  expect(await send({ name: 'a' })).toEqual({ name: 'a' })
})

test('null or an object is written without a check by Ajv, and any other union as before', async () => {
  const Nested = { type: 'object', properties: { id: { type: 'string' } } }
  const response = {
    type: 'object',
    properties: {
      text: { anyOf: [{ type: 'string' }, { type: 'null' }], description: 'x' },
      all: { type: 'array', items: { anyOf: [{ type: 'null' }, Nested] } },
      other: { anyOf: [{ type: 'boolean' }, { type: 'string' }] },
    },
  }
  expect(withNullable(response)).toEqual({
    type: 'object',
    properties: {
      text: { type: 'string', nullable: true, description: 'x' },
      all: { type: 'array', items: { ...Nested, nullable: true } },
      other: { anyOf: [{ type: 'boolean' }, { type: 'string' }] },
    },
  })
  const server = fastify({ schemaController: { compilersFactory: buildLazyCompilers() } })
  const answers = [
    { text: null, all: [null, { id: 'a' }], other: true },
    { text: 'b', all: [], other: 'c' },
  ]
  server.get('/:i', { schema: { response: { 200: response } } }, ({ params }) => answers[(params as { i: 0 | 1 }).i])
  for (const [i, answer] of answers.entries()) expect((await server.inject(`/${i}`)).json()).toEqual(answer)
})
