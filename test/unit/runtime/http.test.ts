import { EventEmitter } from 'node:events'
import { expect, test, vi } from 'vitest'
import {
  isAcceptedVersion,
  refuseOtherVersions,
  NO_SCHEMA_COMPILERS,
  namesStrongly,
  namesWeakly,
} from '../../../src/runtime/http.ts'
import { entityTagOf } from '../../../src/metadata/content.ts'

/** What Node's parser can report: llhttp rejects every other version itself. */
const VERSIONS: readonly [string, boolean][] = [
  ['1.0', true],
  ['1.1', true],
  ['0.9', false],
  ['2.0', false],
]

test.each(VERSIONS)('HTTP/%s is accepted: %s', (version, isAccepted) => {
  expect(isAcceptedVersion(version)).toBe(isAccepted)
})

test.each(VERSIONS)('HTTP/%s reaches the listeners of the server: %s', (httpVersion, isAccepted) => {
  const server = new EventEmitter()
  const [served, sent, counted]: [unknown[], unknown[], unknown[]] = [[], [], []]
  server.on('request', (request: unknown) => served.push(request))
  refuseOtherVersions(
    server as never,
    () => ({ contentType: 'text/plain', body: 'é' }),
    () => counted.push(1),
  )
  const end = (body: string) => sent.push(body)
  const writeHead = (...head: unknown[]) => {
    sent.push(...head)
    return { end }
  }
  server.emit('request', { httpVersion }, { writeHead })
  expect(served).toEqual(isAccepted ? [{ httpVersion }] : [])
  expect(sent).toEqual(
    isAccepted ? [] : [400, { 'Content-Type': 'text/plain', 'Content-Length': 2, Connection: 'close' }, 'é'],
  )
  expect(counted).toHaveLength(isAccepted ? 0 : 1)
})

import Fastify from 'fastify'

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

test('bodies that differ have different strong tags', () => {
  const tags = ['', '{}', '{ }', 'é'].map(entityTagOf)
  for (const tag of tags) expect(tag).toMatch(/^"[\w-]{22}"$/)
  expect(new Set(tags).size).toBe(4)
})

test('If-None-Match compares weakly, If-Match strongly; both may have a list, or name any tag by *', () => {
  for (const header of ['"a"', '"b", "a"', '"b","a" ,"c"', 'x"a", "a"', ' * ']) {
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([true, true])
  }
  expect([namesWeakly('W/"a"', '"a"'), namesStrongly('W/"a"', '"a"')]).toEqual([true, false])
  for (const header of ['', 'a', '"A"', '"aa"', '"b"', '"*"', 'w/"a"', '"b"a"', '"a" "b"', '"a";"a"'])
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([false, false])
})

test('A9: in a list of any length, only elements that contain the tag are read', () => {
  const spies = (['split', 'trim'] as const).map((name) => vi.spyOn(String.prototype, name))
  const commas = ','.repeat(15_000)
  const found = [`${commas}"a"${commas}`, `${commas}"b"${commas}`, `${commas}W/"a"`].map((header) => [
    namesWeakly(header, '"a"'),
    namesStrongly(header, '"a"'),
  ])
  const calls = spies.reduce((sum, spy) => sum + spy.mock.calls.length, 0)
  vi.restoreAllMocks()
  expect(found).toEqual([
    [true, true],
    [false, false],
    [true, false],
  ])
  expect(calls).toBeLessThan(20)
})
