/** Section D of the contract as tables: session tokens, the requests that need them, and forwarded requests. */
import { describe, expect, test } from 'vitest'
import { aGuestServer, type Injection, type TestGuest } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'

const ID = '/latest/meta-data/instance-id'
const TOKEN = '/latest/api/token'
const TTL = 'x-aws-ec2-metadata-token-ttl-seconds'
const HEADER = 'x-aws-ec2-metadata-token'
const OTHER = {
  id: 'srv-other',
  interfaces: [{ id: 'int-o', macAddress: '02:24:19:00:00:0b', ipv4Addresses: ['10.0.0.3/30'] }],
}

function server(
  httpTokens: 'optional' | 'required' = 'optional',
  forwarded: 'refuse' | 'refuse-tokens' | 'count' = 'refuse',
): TestGuest {
  const guest = aGuestServer({ forwarded })
  guest.put(anInstance({ options: { httpTokens, instanceMetadataTags: 'enabled' } }), Buffer.from('data'))
  return guest
}

async function mint(guest: TestGuest, ttl = '60', from = '10.0.0.2'): Promise<string> {
  const answer = await guest.ask({ method: 'PUT', url: TOKEN, headers: { [TTL]: ttl }, from })
  expect(answer.status).toBe(200)
  return answer.text
}

describe('D1: a PUT for a session token', () => {
  test.each(['1', '60', '21600'])('for %s seconds returns a printable line and the same header', async (ttl) => {
    const answer = await server().ask({ method: 'PUT', url: TOKEN, headers: { [TTL]: ttl } })
    expect(answer).toMatchObject({
      status: 200,
      headers: { [TTL]: ttl, 'content-type': 'text/plain', 'content-length': '56' },
    })
    expect(answer.text).toMatch(/^[A-Za-z0-9_-]{54}==$/)
  })

  test.each([
    ['no header', {}],
    ['nothing', { [TTL]: '' }],
    ['zero', { [TTL]: '0' }],
    ['too long', { [TTL]: '21601' }],
    ['negative', { [TTL]: '-1' }],
    ['a fraction', { [TTL]: '1.5' }],
    ['a sign', { [TTL]: '+60' }],
    ['hexadecimal', { [TTL]: '0x10' }],
    ['a power', { [TTL]: '1e3' }],
    ['two values', { [TTL]: '60, 60' }],
    ['words', { [TTL]: 'sixty' }],
    ['endless', { [TTL]: '9'.repeat(400) }],
  ] as [string, Record<string, string>][])('with %s is 400', async (_what, headers) => {
    expect(await server().ask({ method: 'PUT', url: TOKEN, headers })).toMatchObject({ status: 400, text: '' })
  })
})

describe('D2: the token path', () => {
  test.each([
    ['a JSON content type', { 'content-type': 'application/json' }, undefined],
    ['a form', { 'content-type': 'application/x-www-form-urlencoded' }, 'a=b'],
    ['text in a charset', { 'content-type': 'text/plain; charset=utf-8' }, undefined],
    ['a length of 0', { 'content-length': '0' }, undefined],
    ['a body', {}, 'x'.repeat(10_000)],
    ['an invalid token', { [HEADER]: 'stale' }, undefined],
  ] as [string, Record<string, string>, string | undefined][])('accepts %s', async (_what, headers, payload) => {
    const answer = await server().ask({
      method: 'PUT',
      url: TOKEN,
      headers: { [TTL]: '60', ...headers },
      ...(payload !== undefined && { payload }),
    })
    expect(answer.status).toBe(200)
  })

  test.each([
    '//latest///api/token',
    '/latest/api/token/',
    '/latest/api/%74oken',
    '/latest/api/token?x=1',
    'http://elsewhere/latest/api/token',
  ])('accepts %s too', async (url) => {
    expect((await server().ask({ method: 'PUT', url, headers: { [TTL]: '60' } })).status).toBe(200)
  })

  test.each(['/2021-07-15/api/token', '/1.0/api/token', '/2024-04-11//api/token/'])('%s is 403', async (url) => {
    expect(await server().ask({ method: 'PUT', url, headers: { [TTL]: '60' } })).toMatchObject({
      status: 403,
      text: '',
    })
  })

  test.each(['GET', 'POST', 'DELETE', 'HEAD', 'PATCH'])('refuses %s and names the allowed methods', async (method) => {
    expect(await server('required').ask({ method, url: TOKEN })).toMatchObject({
      status: 405,
      text: '',
      headers: { allow: 'OPTIONS, PUT' },
    })
  })

  test('names the allowed methods in response to OPTIONS', async () => {
    expect(await server().ask({ method: 'OPTIONS', url: TOKEN })).toMatchObject({
      status: 200,
      text: '',
      headers: { allow: 'OPTIONS, PUT', 'content-length': '0' },
    })
  })

  test.each([
    '/latest/api',
    '/latest/api/',
    '/latest/api/token/x',
    '/latest/api/Token',
    '/api/token',
    '/latest/api%2Ftoken',
  ])('%s does not exist', async (url) => {
    expect((await server().ask(url)).status).toBe(404)
    expect((await server().ask({ method: 'PUT', url, headers: { [TTL]: '60' } })).status).not.toBe(200)
  })
})

describe('D3: a session token', () => {
  test('of another instance is rejected', async () => {
    const guest = server()
    guest.put(anInstance(OTHER))
    const foreign = await mint(guest, '60', '10.0.0.3')
    expect((await guest.ask({ url: ID, headers: { [HEADER]: foreign }, from: '10.0.0.3' })).status).toBe(200)
    expect((await guest.ask({ url: ID, headers: { [HEADER]: foreign } })).status).toBe(401)
  })

  test('E3: of the previous owner of an address is rejected', async () => {
    const guest = server()
    const token = await mint(guest)
    guest.view.remove('srv-abcde', 1)
    guest.put(anInstance({ id: 'srv-newer' }))
    expect((await guest.ask({ url: ID, headers: { [HEADER]: token } })).status).toBe(401)
    expect(await guest.ask(ID)).toMatchObject({ status: 200, text: 'srv-newer' })
  })

  test('stays valid when its instance changes, at any of its addresses', async () => {
    const guest = server()
    const token = await mint(guest)
    guest.put(
      anInstance({
        revision: 9,
        interfaces: [{ id: 'int-n', macAddress: '02:24:19:00:00:0c', ipv4Addresses: ['10.0.0.6/30'] }],
      }),
    )
    expect((await guest.ask({ url: ID, headers: { [HEADER]: token }, from: '10.0.0.6' })).status).toBe(200)
  })
})

test('D3: a session token is valid on the network of its listener', async () => {
  const guest = aGuestServer({ network: 'red' })
  const [nic] = OTHER.interfaces
  guest.put(anInstance({ interfaces: [{ ...nic!, network: 'red' }] }))
  const token = await mint(guest, '60', '10.0.0.3')
  expect((await guest.ask({ url: ID, headers: { [HEADER]: token }, from: '10.0.0.3' })).status).toBe(200)
})

describe('D4: a request for metadata', () => {
  test('returns the remaining lifetime of its token with 200, 404 and 405', async () => {
    const guest = server()
    const token = await mint(guest, '60')
    guest.clock.ms += 10_000
    for (const [method, url, status] of [
      ['GET', ID, 200],
      ['HEAD', ID, 200],
      ['GET', '/latest/nothing', 404],
      ['GET', '/nothing', 404],
      ['POST', ID, 405],
      ['GET', '/2021-07-15/api/token', 404],
    ] as const) {
      expect(await guest.ask({ method, url, headers: { [HEADER]: token } })).toMatchObject({
        status,
        headers: { [TTL]: '50' },
      })
    }
  })

  test('with an expired token is 401', async () => {
    const guest = server()
    const token = await mint(guest, '1')
    expect((await guest.ask({ url: ID, headers: { [HEADER]: token } })).status).toBe(200)
    guest.clock.ms += 1_000
    expect((await guest.ask({ url: ID, headers: { [HEADER]: token } })).status).toBe(401)
  })

  const BAD = (token: string) => [
    token.slice(0, -1),
    `${token}=`,
    ` ${token}x`,
    `${token}, ${token}`,
    token.toLowerCase(),
    'A'.repeat(54) + '==',
    'x',
    '-'.repeat(8_000),
    token.replace(/^./, (c) => (c === 'A' ? 'B' : 'A')),
  ]
  test('with an invalid token is 401, whether tokens are required or not, and the page gives no details', async () => {
    for (const httpTokens of ['optional', 'required'] as const) {
      const guest = server(httpTokens)
      for (const bad of BAD(await mint(guest))) {
        const answer = await guest.ask({ url: ID, headers: { [HEADER]: bad } })
        expect(answer).toMatchObject({ status: 401, headers: { 'content-type': 'text/html', 'content-length': '345' } })
        expect(answer.text).not.toContain('srv-')
      }
    }
  })

  const EVERYWHERE = [
    '/',
    '//',
    '/latest',
    '/latest/',
    '/1.0/',
    '/2009-04-04/meta-data/instance-id',
    '/2009-04-04//meta-data/instance-id',
    '/%32009-04-04/meta-data/',
    ID,
    `${ID}/`,
    '/latest/meta-data/tags/instance/',
    '/latest/user-data',
    '/2021-07-15/user-data/',
    '/openstack/latest/user_data',
    '/openstack//latest/user_data',
    '/openstack/latest/user_data/',
    '/nothing',
    '/latest/nothing',
    'http://x/latest/user-data',
    '/2021-07-15/api/token',
    '/latest/meta-data/public-keys/usr-xl7gd/openssh-key',
  ]
  test.each(EVERYWHERE)('for %s needs a token if tokens are required', async (url) => {
    const guest = server('required')
    expect((await guest.ask(url)).status).toBe(401)
    expect((await guest.ask({ method: 'HEAD', url })).status).toBe(401)
    expect((await guest.ask({ url, headers: { [HEADER]: '' } })).status).toBe(401)
    expect([200, 404]).toContain((await guest.ask({ url, headers: { [HEADER]: await mint(guest) } })).status)
  })

  test('with an empty token counts as one without a token if tokens are optional', async () => {
    expect((await server().ask({ url: ID, headers: { [HEADER]: '' } })).status).toBe(200)
  })

  test('is counted as with a token, without one, or refused', async () => {
    const guest = server()
    await guest.ask({ url: ID, headers: { [HEADER]: await mint(guest) } })
    await guest.ask(ID)
    await guest.ask(ID)
    await guest.ask({ url: ID, headers: { [HEADER]: 'x' } })
    expect(guest.meter.sessions).toEqual({ token: 1, none: 2, refused: 1 })
  })
})

describe('D5: a forwarded request', () => {
  const FORWARDED: Record<string, string>[] = [
    { 'x-forwarded-for': '10.0.0.2' },
    { 'x-forwarded-for': '' },
    { forwarded: 'for=10.0.0.2' },
    { 'x-forwarded-for': '10.0.0.3', forwarded: 'x' },
  ]
  const requests = (token: string): [string, Injection][] => [
    ['a GET', { url: ID }],
    ['a GET with a token', { url: ID, headers: { [HEADER]: token } }],
    ['a PUT', { method: 'PUT', url: TOKEN, headers: { [TTL]: '60' } }],
  ]
  const ask = async (guest: TestGuest, forwarded: Record<string, string>) => {
    const statuses: Record<string, number> = {}
    for (const [what, injection] of requests(await mint(guest)))
      statuses[what] = (await guest.ask({ ...injection, headers: { ...injection.headers, ...forwarded } })).status
    return statuses
  }

  test.each(FORWARDED)('with %o is 403 and counted', async (forwarded) => {
    const guest = server()
    expect(await ask(guest, forwarded)).toEqual({ 'a GET': 403, 'a GET with a token': 403, 'a PUT': 403 })
    expect(guest.meter.forwards).toBe(3)
    expect(await guest.ask({ url: '/%zz', headers: forwarded })).toMatchObject({ status: 403, text: '' })
  })

  test("is refused under EC2's rule only if it has a token or asks for one", async () => {
    expect(await ask(server('optional', 'refuse-tokens'), { 'x-forwarded-for': 'x' })).toEqual({
      'a GET': 200,
      'a GET with a token': 403,
      'a PUT': 403,
    })
    const statusOf = async (headers: Record<string, string>) =>
      (await server('optional', 'refuse-tokens').ask({ url: '/%zz', headers: { forwarded: 'x', ...headers } })).status
    expect([await statusOf({}), await statusOf({ [HEADER]: 'x' })]).toEqual([400, 403])
  })

  test('is only counted if it is allowed, and the socket still identifies the guest', async () => {
    const guest = server('optional', 'count')
    guest.put(anInstance(OTHER))
    expect(await ask(guest, { 'x-forwarded-for': '10.0.0.3' })).toEqual({
      'a GET': 200,
      'a GET with a token': 200,
      'a PUT': 200,
    })
    expect(guest.meter.forwards).toBe(3)
    expect(await guest.ask({ url: ID, headers: { 'x-forwarded-for': '10.0.0.3' } })).toMatchObject({
      text: 'srv-abcde',
    })
  })

  test('from an unknown peer gets the same response as any other of an unknown peer', async () => {
    expect((await server().ask({ url: ID, headers: { forwarded: 'x' }, from: '10.0.0.9' })).status).toBe(503)
  })
})

test('D6: on a connection whose hops cannot be limited, all requests but for a token are served', async () => {
  const guest = aGuestServer({ limitsHops: false })
  guest.put(anInstance())
  const statuses = ['GET', 'HEAD', 'OPTIONS', 'PUT'].map(
    async (method) => (await guest.ask({ method, url: method === 'GET' || method === 'HEAD' ? ID : TOKEN })).status,
  )
  expect(await Promise.all(statuses)).toEqual([200, 200, 200, 503])
})

test('invariant 9: no log line at any level contains a token, a key or user-data', async () => {
  const guest = aGuestServer({ level: 'debug' })
  guest.put(anInstance({ options: { httpTokens: 'required' } }), Buffer.from('a-secret-of-the-guest'))
  const token = await mint(guest)
  await guest.ask({ url: '/latest/user-data', headers: { [HEADER]: token } })
  await guest.ask({ url: `/latest/${token}`, headers: { [HEADER]: `${token}x` } })
  await guest.ask({ url: ID, headers: { [HEADER]: token, 'x-forwarded-for': token } })
  const lines = JSON.stringify(guest.log)
  expect(guest.log.length).toBeGreaterThan(3)
  expect(lines).not.toContain(token.slice(0, 20))
  expect(lines).not.toContain('a-secret-of-the-guest')
})
