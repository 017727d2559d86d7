import Fastify from 'fastify'
import { expect, test } from 'vitest'
import { guardAccess, isOwnHost } from '../../../src/pages/access.ts'
import { NO_SCHEMA_COMPILERS } from '../../../src/runtime/fastify-settings.ts'

function aServer(password: string | undefined) {
  const server = Fastify({ schemaController: NO_SCHEMA_COMPILERS })
  for (const path of ['/', '/livez', '/metrics']) server.get(path, () => 'text')
  guardAccess(server, { password, probes: ['/livez'], counts: ['/metrics'] })
  return async (url: string, headers: Readonly<Record<string, string>> = {}) =>
    (await server.inject({ url, headers: { host: '127.0.0.1:9169', ...headers } })).statusCode
}

const basic = (text: string) => ({ authorization: `Basic ${Buffer.from(text).toString('base64')}` })

test.each([
  [undefined, true],
  ['127.0.0.1:9169', true],
  ['10.1.0.11', true],
  ['[fd00::1]:9169', true],
  ['[::1]', true],
  ['localhost', true],
  ['LocalHost:80', true],
  ['evil.example:9169', false],
  ['localhost.evil.example', false],
  ['127.0.0.1.evil.example', false],
  ['fd00::1', false],
  ['[evil]', false],
  ['127.0.0.1:9169:80', false],
  ['127.0.0.1@evil.example', false],
  ['0x7f.1', false],
  ['', false],
])('the Host header %j is of this listener: %s', (header, isOwn) => {
  expect(isOwnHost(header)).toBe(isOwn)
})

test('without a password, a Host header of another site is refused, but for probes and counts', async () => {
  const get = aServer(undefined)
  const evil = { host: 'evil.example' }
  expect(await Promise.all(['/', '/nothing', '/livez', '/metrics'].map((path) => get(path, evil)))).toEqual([
    421, 421, 200, 200,
  ])
  expect(await get('/')).toBe(200)
})

test('with a password, it is needed for all but probes, with any user name and any Host header', async () => {
  const get = aServer('a secret: ü')
  expect(await Promise.all(['/', '/nothing', '/metrics', '/livez'].map((path) => get(path)))).toEqual([
    401, 401, 401, 200,
  ])
  for (const right of ['operator:a secret: ü', ':a secret: ü'])
    expect(await get('/', { ...basic(right), host: 'hv1.example' })).toBe(200)
  for (const wrong of ['operator:', 'operator:a secret: u', 'a secret: ü', 'operator:a secret: ü '])
    expect(await get('/', basic(wrong))).toBe(401)
  expect(await get('/', { authorization: 'Bearer x' })).toBe(401)
})
