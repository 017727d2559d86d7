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
const ECDSA = `ecdsa-sha2-nistp256 ${keyOf('ecdsa-sha2-nistp256')}`
const DSS = `ssh-dss ${keyOf('ssh-dss')}`
const OTHER = anInstance({
  id: 'srv-other',
  interfaces: [{ id: 'int-o', macAddress: '02:24:19:00:00:0f', ipv4Addresses: ['10.0.0.3/24'] }],
  options: { reports: 'enabled' },
})
const BOOT = '/latest/reports/boot'
const KEYS = '/latest/reports/ssh-host-keys'
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

describe('H9: each kind of report', () => {
  test.each([
    ['done', { phase: 'done' }],
    ['done\n', { phase: 'done' }],
    ['running 2026-11-20T15:04:05Z', { phase: 'running', time: '2026-11-20T15:04:05Z' }],
    ['x-1 2026-11-20T15:04:05.123+01:00', { phase: 'x-1', time: '2026-11-20T15:04:05.123+01:00' }],
  ])('boot takes a phase and a time: %j', async (body, boot) => {
    expect(await report(BOOT, body)).toMatchObject({ status: 200, text: '', headers: { 'content-length': '0' } })
    expect(kept()?.boot).toEqual({ ...boot, revision: MINUTE_MS, receivedAt: '1970-01-01T00:01:00.000Z' })
  })

  test.each([
    [`${ED25519}\n`, [ED25519]],
    [`${ED25519} root@guest\n${ECDSA} root@guest\n`, [ED25519, ECDSA]],
    [`# localhost:22 SSH-2.0\nlocalhost ${ED25519}\n\n[10.0.0.2]:22 ${ED25519}\r\n`, [ED25519]],
  ])('ssh-host-keys takes lines of known_hosts and of public keys: %j', async (body, keys) => {
    expect((await report(KEYS, body)).status).toBe(200)
    expect(kept()?.sshHostKeys?.keys).toEqual(keys)
  })

  test.each([
    [`${DSS} root@x\n${ED25519} root@x\n`, [ED25519], 'not kept: ssh-dss'],
    [`${DSS}\n`, [], 'not kept: ssh-dss'],
    [`h ${DSS}\nh sk-x@y.z ${keyOf('sk-x@y.z')}\nh ${ECDSA}\n`, [ECDSA], 'not kept: ssh-dss, sk-x@y.z'],
  ])('keys of other types are named, and those before are replaced: %j', async (body, keys, answer) => {
    await report(KEYS, `${ED25519}\n${ECDSA}`)
    expect(await report(KEYS, body)).toMatchObject({
      status: 200,
      text: answer,
      headers: { 'content-length': String(answer.length) },
    })
    expect(kept()?.sshHostKeys?.keys).toEqual(keys)
    await report(KEYS, body, { waits: false })
    expect(guest.log).toMatchObject([{ instance: 'srv-abcde', types: answer.slice('not kept: '.length).split(', ') }])
    expect(JSON.stringify(guest.log)).not.toMatch('AAAA')
  })

  test('phone-home keeps the keys of known types, and replaces those before', async () => {
    const form = new URLSearchParams({ pub_key_dsa: `${DSS} root@x\n`, pub_key_ed25519: `${ED25519} root@x\n` })
    const send = (body: URLSearchParams) => report(HOME, body.toString(), { method: 'POST', headers: {} as never })
    await report(KEYS, ECDSA)
    expect(await send(form)).toMatchObject({ status: 200, text: 'not kept: ssh-dss' })
    expect(guest.log.at(-1)).toMatchObject({ types: ['ssh-dss'] })
    expect(kept()?.sshHostKeys?.keys).toEqual([ED25519])
    await send(new URLSearchParams({ instance_id: 'x' }))
    expect(kept()?.sshHostKeys?.keys, 'it names no keys').toEqual([ED25519])
    await send(new URLSearchParams({ pub_key_rsa: 'N/A' }))
    expect(kept()?.sshHostKeys?.keys, 'the guest has none').toEqual([])
    expect((await send(new URLSearchParams({ pub_key_rsa: 'rubbish' }))).status).toBe(400)
  })

  test('attributes have names; an empty body removes one', async () => {
    await report('/latest/reports/attributes/a', '1')
    await report('/latest/reports/attributes/b.c-d_E', 'grüß\n\tdich')
    await report('/latest/reports/attributes/a', '2')
    expect(kept()?.attributes.get('a')?.value).toBe('2')
    expect(kept()?.attributes.get('b.c-d_E')?.value).toBe('grüß\n\tdich')
    expect((await report('/latest/reports/attributes/a', '')).status).toBe(200)
    expect(reportsOf(guest, 'srv-abcde')?.claimedByGuest.attributes).toMatchObject([{ name: 'b.c-d_E' }])
  })

  test("phone-home takes the form of cloud-init's module, without a token, and ignores its instance_id", async () => {
    const form = new URLSearchParams({
      pub_key_rsa: 'N/A',
      pub_key_ecdsa: `${ECDSA} root@x\n`,
      pub_key_ed25519: `${ED25519} root@x\n`,
      instance_id: 'srv-other',
      hostname: 'liar',
    })
    expect((await report(HOME, form.toString(), { method: 'POST', headers: {} as never })).status).toBe(200)
    expect(kept()).toMatchObject({ boot: { phase: 'done' }, sshHostKeys: { keys: [ECDSA, ED25519] } })
    expect(JSON.stringify(storedForm(kept()!))).not.toMatch(/srv-other|liar/)
    expect(kept('srv-other')).toBeUndefined()
  })

  test('a report replaces the last one of its name only', async () => {
    for (const body of ['running', 'done']) await report(BOOT, body)
    await report(KEYS, ED25519)
    expect(kept()).toMatchObject({
      revision: 3 * MINUTE_MS,
      boot: { phase: 'done', revision: 2 * MINUTE_MS },
      sshHostKeys: { revision: 3 * MINUTE_MS },
    })
  })
})

describe('H9: bounds', () => {
  test.each([
    [BOOT, 'Done'],
    [BOOT, ''],
    [BOOT, 'done now'],
    [BOOT, 'done 2026-13-45T15:04:05Z'],
    [BOOT, 'done 2026-02-30T15:04:05Z'],
    [BOOT, 'x'.repeat(33)],
    [KEYS, 'ssh-ed25519 AAAA'],
    [KEYS, `ssh-rsa ${ED25519.split(' ')[1]!}`],
    [KEYS, `${ED25519}\nrubbish`],
    [KEYS, `ssh-dss ${keyOf('ssh-rsa')}`],
    [KEYS, Array.from({ length: 17 }, (_, i) => `x${i} ${keyOf(`x${i}`)}`).join('\n')],
    [KEYS, '# a comment'],
    [KEYS, ''],
    ['/latest/reports/attributes/a', '\u0000'],
    ['/latest/reports/attributes/a', 'a\u001b[2J'],
  ])('%s refuses bad content with 400, and keeps the last report: %j', async (url, body) => {
    await report(BOOT, 'done')
    const before = kept()
    expect((await report(url, body)).status).toBe(400)
    expect(kept()).toEqual(before)
  })

  test('content that is not UTF-8 is 400', async () => {
    guest.clock.ms += MINUTE_MS
    const { statusCode } = await guest.server.inject({
      method: 'PUT',
      url: '/latest/reports/attributes/a',
      headers: { 'x-aws-ec2-metadata-token': token },
      remoteAddress: '10.0.0.2',
      payload: Buffer.from([0xff]),
    })
    expect(statusCode).toBe(400)
  })

  test('an attribute has at most 1 KiB, and there are at most 64: 413', async () => {
    expect((await report('/latest/reports/attributes/a0', 'x'.repeat(1025))).status).toBe(413)
    for (let i = 0; i < 64; i++) expect((await report(`/latest/reports/attributes/a${i}`, String(i))).status).toBe(200)
    expect((await report('/latest/reports/attributes/more', 'x')).status).toBe(413)
    expect((await report('/latest/reports/attributes/a0', 'x'.repeat(1024))).status, 'a name that it has').toBe(200)
  })

  test('all reports together have at most 16 KiB as JSON, and a body too: 413', async () => {
    const statuses = new Set<number>()
    for (let i = 0; i < 20; i++)
      statuses.add((await report(`/latest/reports/attributes/a${i}`, 'x'.repeat(1024))).status)
    expect([...statuses]).toEqual([200, 413])
    expect(Buffer.byteLength(JSON.stringify(storedForm(kept()!)))).toBeLessThanOrEqual(16_384)
    expect((await report(KEYS, ' '.repeat(16_385))).status).toBe(413)
  })

  test('10 reports a minute, good or bad; beyond that 429 with Retry-After, for this guest only', async () => {
    guest.clock.ms += MINUTE_MS
    for (let i = 0; i < 10; i++) await report(BOOT, i % 2 === 0 ? 'running' : '!', { waits: false })
    expect(await report(BOOT, 'done', { waits: false })).toMatchObject({
      status: 429,
      text: '',
      headers: { 'retry-after': '60' },
    })
    expect(kept()?.boot?.phase).toBe('running')
    expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(200)
    const from = '10.0.0.3'
    const headers = { 'x-aws-ec2-metadata-token': await tokenOf(from) }
    expect((await report(BOOT, 'done', { waits: false, headers, from })).status).toBe(200)
    guest.clock.ms += MINUTE_MS
    expect((await report(BOOT, 'done', { waits: false })).status).toBe(200)
  })
})

describe('H9: who may report', () => {
  test.each([BOOT, KEYS, HOME, '/latest/reports/attributes/a'])('%s is 404 if it is not allowed', async (url) => {
    guest.put(anInstance({ revision: 2, options: { reports: 'disabled' } }))
    for (const method of ['PUT', 'POST', 'GET']) expect((await report(url, 'done', { method })).status).toBe(404)
    expect(kept()).toBeUndefined()
  })

  test.each([
    '/latest/reports/',
    '/latest/reports/boot/x',
    '/latest/reports/attributes/',
    '/latest/reports/attributes/a/b',
    '/latest/reports/attributes/.a',
    `/latest/reports/attributes/${'a'.repeat(65)}`,
    '/latest/reports/other',
    '/2009-04-04/reports/boot',
  ])('%s is 404', async (url) => expect((await report(url, 'done')).status).toBe(404))

  test.each([BOOT, KEYS, '/latest/reports/attributes/a'])('PUT %s without a session token is 401', async (url) => {
    expect((await report(url, 'done', { headers: {} as never })).status).toBe(401)
    const other = { 'x-aws-ec2-metadata-token': await tokenOf('10.0.0.3') }
    expect((await report(url, 'done', { headers: other })).status, "another guest's").toBe(401)
    expect(kept()).toBeUndefined()
  })

  test('phone-home without a token is 401 where tokens are required', async () => {
    guest.put(anInstance({ revision: 2, options: { reports: 'enabled', httpTokens: 'required' } }))
    expect((await report(HOME, 'a=b', { method: 'POST', headers: {} as never })).status).toBe(401)
  })

  test.each([
    [BOOT, 'GET', 'PUT'],
    [BOOT, 'POST', 'PUT'],
    [KEYS, 'DELETE', 'PUT'],
    [HOME, 'PUT', 'POST'],
  ])('%s refuses %s with 405 and Allow', async (url, method, allow) => {
    expect(await report(url, 'done', { method })).toMatchObject({ status: 405, headers: { allow } })
  })

  test('a report is never served, and gives no other identity', async () => {
    await report('/latest/reports/attributes/instance-id', 'srv-other')
    for (const url of ['/latest/reports/attributes/instance-id', BOOT])
      expect((await report(url, '', { method: 'GET' })).status).toBe(405)
    expect((await guest.ask('/latest/meta-data/instance-id')).text).toBe('srv-abcde')
    expect((await guest.ask('/latest/')).text).not.toMatch('reports')
  })

  test('a report ends with the stay of its instance: a later one with its address or its id has none', async () => {
    await report(BOOT, 'done')
    guest.view.remove('srv-abcde', 1)
    expect((await report(BOOT, 'done')).status).toBe(503)
    guest.put(anInstance({ revision: 2, options: { reports: 'enabled' } }))
    expect(kept()).toBeUndefined()
  })
})

test('H9: no log line and no label of a metric has a part of a report', async () => {
  guest = aGuestServer({ level: 'debug' })
  guest.put(anInstance({ options: { reports: 'enabled' } }))
  token = await tokenOf('10.0.0.2')
  for (const body of ['SECRET-VALUE', 'SECRET-VALUE\u0000'])
    await report('/latest/reports/attributes/SECRET-NAME', body)
  expect(JSON.stringify([guest.log, guest.meter.counts()])).not.toMatch(/SECRET/)
  expect(guest.meter.counts().filter(({ route }) => route === '/latest/reports')).toMatchObject([
    { method: 'PUT', status: 200, count: 1 },
    { method: 'PUT', status: 400, reason: 'bad-report', count: 1 },
  ])
})

test("H9: the operators' document says that the guest claims it, with the addresses of its record", async () => {
  await report(BOOT, 'done')
  await report(KEYS, ED25519)
  await report('/latest/reports/attributes/b', '2')
  await report('/latest/reports/attributes/a', '1')
  expect(reportsOf(guest, 'srv-abcde')).toEqual({
    id: 'srv-abcde',
    allowed: true,
    claimedByGuest: {
      boot: { phase: 'done', receivedAt: '1970-01-01T00:01:00.000Z' },
      sshHostKeys: { knownHosts: [`10.0.0.2 ${ED25519}`], receivedAt: '1970-01-01T00:02:00.000Z' },
      attributes: [
        { name: 'a', value: '1', receivedAt: '1970-01-01T00:04:00.000Z' },
        { name: 'b', value: '2', receivedAt: '1970-01-01T00:03:00.000Z' },
      ],
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
