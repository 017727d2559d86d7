/**
 * H9 of the contract: what a guest reports, its bounds, and that it is only a claim. Slow and endless bodies are in
 * test/imdsd/reports.test.ts.
 */
import { PassThrough } from 'node:stream'
import { setImmediate as turn } from 'node:timers/promises'
import { beforeEach, describe, expect, test, vi } from 'vitest'
import { storedForm, type Reports } from '../../src/metadata/reports.ts'
import { reportsOf } from '../../src/imdsd/operator/reports.ts'
import { aGuestServer, type Injected, type TestGuest } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'

const ED25519 = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD'
const DSS = `ssh-dss ${keyOf('ssh-dss')}`
const OTHER = anInstance({
  id: 'srv-other',
  interfaces: [{ id: 'int-o', macAddress: '02:24:19:00:00:0f', ipv4Addresses: ['10.0.0.3/24'] }],
  options: { reports: 'enabled' },
})
const A = '/latest/reports/a'
const HOME = '/latest/reports/phone-home'
const MINUTE_MS = 60_000

function keyOf(type: string): string {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(type.length)
  return Buffer.concat([length, Buffer.from(type), Buffer.from('key')]).toString('base64')
}

let guest: TestGuest
let token: string
beforeEach(async () => {
  guest = aGuestServer()
  guest.put(anInstance({ options: { reports: 'enabled' } }))
  guest.put(OTHER)
  token = await tokenOf('10.0.0.2')
})

async function tokenOf(from: string): Promise<string> {
  const headers = { 'x-aws-ec2-metadata-token-ttl-seconds': '21600' }
  return (await guest.ask({ method: 'PUT', url: '/latest/api/token', headers, from })).text
}

/** Sends a report with the token, in a minute of its own unless `waits` is false. */
async function report(
  url: string,
  payload: string,
  { method = 'PUT', waits = true, headers = { 'x-aws-ec2-metadata-token': token }, from = '10.0.0.2' } = {},
): Promise<Injected> {
  if (waits) guest.clock.ms += MINUTE_MS
  return guest.ask({ method, url, headers, payload, from })
}

const kept = (id = 'srv-abcde'): Reports | undefined => guest.reports.of(guest.view.get(id)!)
const texts = () => Object.fromEntries([...(kept()?.byName ?? [])].map(([name, { text }]) => [name, text]))

describe('H9: a report', () => {
  test('is a text with a name; a later one of the name replaces it, and an empty body removes it', async () => {
    expect(await report(A, '1')).toMatchObject({ status: 200, text: '', headers: { 'content-length': '0' } })
    await report('/latest/reports/_b.c-D', 'grüß\n\tdich')
    await report(A, '2')
    expect(kept()).toEqual({
      revision: 3 * MINUTE_MS,
      byName: new Map([
        ['a', { text: '2', revision: 3 * MINUTE_MS, receivedAt: '1970-01-01T00:03:00.000Z' }],
        ['_b.c-D', { text: 'grüß\n\tdich', revision: 2 * MINUTE_MS, receivedAt: '1970-01-01T00:02:00.000Z' }],
      ]),
    })
    expect((await report(A, '')).status).toBe(200)
    expect(reportsOf(guest, 'srv-abcde')?.claimedByGuest.reports).toMatchObject([{ name: '_b.c-D' }])
  })

  test("phone-home takes the form of cloud-init's module, without a token: each field is a report", async () => {
    const form = new URLSearchParams({ pub_key_rsa: 'N/A', pub_key_ed25519: `${ED25519} root@x\n`, hostname: 'é' })
    await report('/latest/reports/pub_key_rsa', 'former')
    expect((await report(HOME, form.toString(), { method: 'POST', headers: {} as never })).status).toBe(200)
    expect(texts()).toEqual({ pub_key_rsa: 'N/A', pub_key_ed25519: `${ED25519} root@x\n`, hostname: 'é' })
    expect(kept('srv-other')).toBeUndefined()
  })
})

describe('H9: bounds', () => {
  test.each([
    ['PUT', A, '\u0000'],
    ['PUT', A, 'a\u001b[2J'],
    ['POST', HOME, ''],
    ['POST', HOME, 'a=1&b=%00'],
    ['POST', HOME, 'a=1&b/c=2'],
    ['POST', HOME, `a=1&${'x'.repeat(65)}=2`],
  ])('%s %s refuses bad content with 400, and keeps the reports before: %j', async (method, url, body) => {
    await report(A, 'before')
    expect((await report(url, body, { method })).status).toBe(400)
    expect(texts()).toEqual({ a: 'before' })
  })

  test('content that is not UTF-8 is 400', async () => {
    guest.clock.ms += MINUTE_MS
    const { statusCode } = await guest.server.inject({
      method: 'PUT',
      url: A,
      headers: { 'x-aws-ec2-metadata-token': token },
      remoteAddress: '10.0.0.2',
      payload: Buffer.from([0xff]),
    })
    expect(statusCode).toBe(400)
  })

  test('a text has at most 4 KiB, and there are at most 16: 413', async () => {
    expect((await report('/latest/reports/a0', 'x'.repeat(4_097))).status).toBe(413)
    expect((await report(HOME, `a0=1&b=${'x'.repeat(4_097)}`, { method: 'POST' })).status).toBe(413)
    expect(kept()).toBeUndefined()
    for (let i = 0; i < 16; i++) expect((await report(`/latest/reports/a${i}`, String(i))).status).toBe(200)
    expect((await report('/latest/reports/more', 'x')).status).toBe(413)
    expect((await report('/latest/reports/a0', 'x'.repeat(4_096))).status, 'a name that it has').toBe(200)
    await report('/latest/reports/a1', '')
    expect((await report('/latest/reports/more', 'x')).status, 'in place of a removed one').toBe(200)
  })

  test('all reports together have at most 16 KiB as JSON, and a body too: 413', async () => {
    const statuses: number[] = []
    for (let i = 0; i < 5; i++) statuses.push((await report(`/latest/reports/a${i}`, 'x'.repeat(4_096))).status)
    expect(statuses).toEqual([200, 200, 200, 413, 413])
    expect(Buffer.byteLength(JSON.stringify(storedForm(kept()!)))).toBeLessThanOrEqual(16_384)
    expect((await report(A, ' '.repeat(16_385))).status).toBe(413)
  })

  test('10 reports a minute, good or bad; beyond that 429 with Retry-After, for this guest only', async () => {
    guest.clock.ms += MINUTE_MS
    for (let i = 0; i < 10; i++) await report(A, i % 2 === 0 ? 'running' : '\u0000', { waits: false })
    expect(await report(A, 'done', { waits: false })).toMatchObject({
      status: 429,
      text: '',
      headers: { 'retry-after': '60' },
    })
    expect(texts()).toEqual({ a: 'running' })
    expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(200)
    const from = '10.0.0.3'
    const headers = { 'x-aws-ec2-metadata-token': await tokenOf(from) }
    expect((await report(A, 'done', { waits: false, headers, from })).status).toBe(200)
    guest.clock.ms += MINUTE_MS
    expect((await report(A, 'done', { waits: false })).status).toBe(200)
  })
})

describe('H9: who may report', () => {
  test.each([A, HOME])('%s is 404 if it is not allowed', async (url) => {
    guest.put(anInstance({ revision: 2, options: { reports: 'disabled' } }))
    for (const method of ['PUT', 'POST', 'GET']) expect((await report(url, 'done', { method })).status).toBe(404)
    expect(kept()).toBeUndefined()
  })

  test.each([
    '/latest/reports/',
    '/latest/reports/a/b',
    '/latest/reports/a%20b',
    '/latest/reports/%C3%A9',
    `/latest/reports/${'a'.repeat(65)}`,
    '/2009-04-04/reports/a',
  ])('%s is 404', async (url) => expect((await report(url, 'done')).status).toBe(404))

  test('PUT without a session token is 401', async () => {
    expect((await report(A, 'done', { headers: {} as never })).status).toBe(401)
    const other = { 'x-aws-ec2-metadata-token': await tokenOf('10.0.0.3') }
    expect((await report(A, 'done', { headers: other })).status, "another guest's").toBe(401)
    expect(kept()).toBeUndefined()
  })

  test('phone-home without a token is 401 where tokens are required', async () => {
    guest.put(anInstance({ revision: 2, options: { reports: 'enabled', httpTokens: 'required' } }))
    expect((await report(HOME, 'a=b', { method: 'POST', headers: {} as never })).status).toBe(401)
  })

  test.each([
    [A, 'GET', 'PUT'],
    [A, 'POST', 'PUT'],
    [A, 'DELETE', 'PUT'],
    [HOME, 'PUT', 'POST'],
  ])('%s refuses %s with 405 and Allow', async (url, method, allow) => {
    expect(await report(url, 'done', { method })).toMatchObject({ status: 405, headers: { allow } })
  })

  test('a report is never served, and gives no other identity', async () => {
    await report('/latest/reports/instance-id', 'srv-other')
    expect((await report('/latest/reports/instance-id', '', { method: 'GET' })).status).toBe(405)
    expect((await guest.ask('/latest/meta-data/instance-id')).text).toBe('srv-abcde')
    expect((await guest.ask('/latest/')).text).not.toMatch('reports')
  })

  test('a report ends with the stay of its instance: a later one with its address or its id has none', async () => {
    await report(A, 'done')
    guest.view.remove('srv-abcde', 1)
    expect((await report(A, 'done')).status).toBe(503)
    guest.put(anInstance({ revision: 2, options: { reports: 'enabled' } }))
    expect(kept()).toBeUndefined()
  })
})

test('H9: no log line and no label of a metric has a part of a report', async () => {
  guest = aGuestServer({ level: 'debug' })
  guest.put(anInstance({ options: { reports: 'enabled' } }))
  token = await tokenOf('10.0.0.2')
  for (const body of ['SECRET-VALUE', 'SECRET-VALUE\u0000']) await report('/latest/reports/SECRET-NAME', body)
  expect(JSON.stringify([guest.log, guest.meter.counts()])).not.toMatch(/SECRET/)
  expect(guest.meter.counts().filter(({ route }) => route === '/latest/reports')).toMatchObject([
    { method: 'PUT', status: 200, count: 1 },
    { method: 'PUT', status: 400, reason: 'bad-report', count: 1 },
  ])
})

test("H9: the operators' document has the texts as claims, and the SSH keys in them as known_hosts", async () => {
  await report('/latest/reports/boot', 'done')
  await report('/latest/reports/a', `# a comment\n\n${ED25519} root@guest\r\nlocalhost ${DSS}\nrubbish ${ED25519} x\n`)
  await report('/latest/reports/b', `ssh-rsa ${ED25519.split(' ')[1]!}\n@revoked * ${ED25519}\nssh-ed25519 AAAA`)
  expect(reportsOf(guest, 'srv-abcde')).toMatchObject({
    id: 'srv-abcde',
    allowed: true,
    claimedByGuest: {
      reports: [
        { name: 'a' },
        { name: 'b', receivedAt: '1970-01-01T00:03:00.000Z' },
        { name: 'boot', text: 'done', receivedAt: '1970-01-01T00:01:00.000Z' },
      ],
      knownHosts: [`10.0.0.2 ${ED25519}`, `10.0.0.2 ${DSS}`],
    },
  })
  expect(reportsOf(guest, 'srv-none')).toBeUndefined()
})

/** Sends the head of a report whose body arrives in pieces. */
function slowReport() {
  const body = new PassThrough()
  const headers = { 'content-length': '4' }
  const request = { method: 'POST', url: HOME, headers, remoteAddress: '10.0.0.2', payload: body } as const
  return { body, response: guest.server.inject(request).then(({ statusCode }) => statusCode) }
}

test('E3: a report whose address changes its owner while the body arrives is given to neither', async () => {
  const { body, response } = slowReport()
  body.write('a=')
  for (let i = 0; i < 10; i++) await turn()
  guest.view.remove('srv-abcde', 1)
  guest.put({ ...OTHER, revision: 2, interfaces: anInstance()['interfaces'] })
  body.end('b\n')
  expect(await response).toBe(503)
  expect([guest.reports.of(guest.view.get('srv-other')!)]).toEqual([undefined])
})

test('F2: a report whose body takes longer than 5 s is refused', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  try {
    const { body, response } = slowReport()
    body.write('a=')
    for (let i = 0; i < 10; i++) await turn()
    await vi.advanceTimersByTimeAsync(5_000)
    expect(await response).toBe(400)
    body.destroy()
  } finally {
    vi.useRealTimers()
  }
})
