import Fastify from 'fastify'
import { expect, test } from 'vitest'
import { guardAccess, isOwnHost } from '../../../src/pages/access.ts'
import { NO_SCHEMA_COMPILERS } from '../../../src/runtime/http.ts'

function aServer(password: string | undefined) {
  const server = Fastify({ schemaController: NO_SCHEMA_COMPILERS })
  for (const path of ['/', '/livez', '/metrics']) server.get(path, () => 'text')
  guardAccess(server, { password, probes: ['/livez'], counts: ['/metrics'], now: () => 0 })
  return async (url: string, headers: Readonly<Record<string, string>> = {}, remoteAddress = '127.0.0.1') =>
    (await server.inject({ url, headers: { host: '127.0.0.1:9169', ...headers }, remoteAddress })).statusCode
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
])('the Host header %j is of this listener: %s', (header, isOwn) => expect(isOwnHost(header)).toBe(isOwn))

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

/** Sends one wrong password from each address, and returns how many were compared. */
async function guess(get: ReturnType<typeof aServer>, addresses: readonly string[]): Promise<number> {
  const statuses: number[] = []
  for (const address of addresses) statuses.push(await get('/', basic('operator:guess'), address))
  expect(statuses.every((status) => [401, 429].includes(status))).toBe(true)
  return statuses.filter((status) => status === 401).length
}

test('beyond ten wrong passwords from an address it gets 429, and others are let in with the right one', async () => {
  const get = aServer('right')
  expect(await guess(get, Array<string>(20).fill('192.0.2.1'))).toBe(10)
  expect(await get('/', basic('operator:right'), '192.0.2.1')).toBe(429)
  expect(await get('/', basic('operator:right'), '192.0.2.2')).toBe(200)
  expect([await get('/livez', {}, '192.0.2.1'), await get('/', {}, '192.0.2.1')]).toEqual([200, 401])
})

test('all loopback addresses are one, so a local user cannot use up the guesses of all addresses', async () => {
  const get = aServer('right')
  const loopback = Array.from({ length: 200 }, (_, i) => `127.0.1.${i}`)
  expect(await guess(get, [...loopback, '::1', '::ffff:127.0.0.1'])).toBe(10)
  expect(await get('/', basic('operator:right'), '192.0.2.2')).toBe(200)
})

test('beyond a hundred wrong passwords from all addresses only those that had the right one are let in', async () => {
  const get = aServer('right')
  const right = (address: string) => get('/', basic('operator:right'), address)
  expect(await right('198.51.100.1')).toBe(200)
  expect(
    await guess(
      get,
      Array.from({ length: 300 }, (_, i) => `192.0.2.${i % 100}`),
    ),
  ).toBe(100)
  expect([await right('198.51.100.1'), await right('198.51.100.2')]).toEqual([200, 429])
})

test('a request without a password is no guess', async () => {
  const get = aServer('right')
  for (let i = 0; i < 20; i++) expect(await get('/')).toBe(401)
  expect(await get('/', basic('operator:right'))).toBe(200)
})
