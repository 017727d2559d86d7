import Value from 'typebox/value'
import { expect, test } from 'vitest'
import type { FirewallDocument } from '../../../../src/imdsd/firewall/document.ts'
import {
  ExplanationSchema,
  InstanceExplanationSchema,
  InstanceStateSchema,
  ReadinessSchema,
  ReportsSchema,
} from '../../../../src/imdsd/operator/documents.ts'
import type { GateState } from '../../../../src/imdsd/operator/launch-gate.ts'
import { PAGE_HEADERS } from '../../../../src/pages/document.ts'
import { buildSocketServer, buildTcpServer, type OperatorParts } from '../../../../src/imdsd/operator/server.ts'
import { READINESS } from '../../../support/fixtures/ready.ts'

const DOCUMENT: FirewallDocument = {
  version: 'a.1',
  link: 'tap',
  listeners: [],
  operator: { address: '127.0.0.1', port: 9169 },
  limitedDscp: 11,
  guests: [],
}
const GATE: Readonly<Record<string, GateState>> = {
  'srv-a': { revision: 7, order: 3 },
  'srv-c': {
    revision: 7,
    order: 3,
    reason: 'the firewall has not admitted the guest yet',
  },
  'srv-d': { revision: 7, order: 3, reason: 'its link has no possible name', final: true },
}

function parts({ ready = true, reports = [] as unknown[], diagnosed = [] as string[] } = {}): OperatorParts {
  return {
    metrics: { contentType: 'text/plain; version=0.0.4', metrics: () => Promise.resolve('imds_up 1\n') },
    readiness: () => ({ ...READINESS, ready }),
    launchGate: (id) => GATE[id],
    explain: (network, address) =>
      Promise.resolve(
        address === 'x' ? undefined : { network, address, answer: 'metadata', status: 200, because: "it is srv-a's" },
      ),
    explainInstance: (id) =>
      Promise.resolve({ id, ...(id === 'srv-a' ? { revision: 7 } : { reason: 'why' }), addresses: [], more: 0 }),
    reports: (id) =>
      id === 'srv-a' ? { id, allowed: true, claimedByGuest: { reports: [], knownHosts: [] } } : undefined,
    page: (question) => Promise.resolve(question.search === 'busy' ? undefined : JSON.stringify(question)),
    diagnose: (id) => {
      diagnosed.push(id)
      return Promise.resolve(id === 'srv-a' ? undefined : 'the store was lost 3 s ago')
    },
    firewall: {
      next: (report) => {
        reports.push(report)
        const document = { version: DOCUMENT.version, json: Buffer.from(JSON.stringify(DOCUMENT)) }
        return Promise.resolve(report?.applied === 'none' ? undefined : document)
      },
    },
  }
}

const aServer = (ready = true) => buildSocketServer(parts({ ready }), 64)
const aTcpServer = () =>
  buildTcpServer(parts(), {
    allow: [],
    maxConnections: 64,
    now: () => 0,
    log: {
      warn: () => undefined,
    },
  })

test('its documents have the shapes that the API declares', async () => {
  const server = aServer()
  const json = async (url: string): Promise<unknown> => (await server.inject(url)).json()
  expect(Value.Check(ReadinessSchema, await json('/readyz'))).toBe(true)
  for (const id of ['srv-a', 'srv-b', 'srv-c', 'srv-d'])
    expect(Value.Check(InstanceStateSchema, await json(`/instances/${id}?reason`))).toBe(true)
  expect(Value.Check(ExplanationSchema, await json('/explain?address=10.0.0.2'))).toBe(true)
})

test('metrics, liveness and readiness answer', async () => {
  const server = aServer()
  expect((await server.inject('/metrics')).body).toBe('imds_up 1\n')
  expect((await server.inject('/livez')).statusCode).toBe(200)
  const ready = await server.inject('/readyz')
  expect([ready.statusCode, ready.json()]).toEqual([200, READINESS])
  expect((await aServer(false).inject('/readyz')).statusCode).toBe(503)
})

test('the launch gate answers 200, 409 or 404 with the revision and the reason', async () => {
  const server = aServer()
  const known = await server.inject('/instances/srv-a')
  expect([known.statusCode, known.json()]).toEqual([200, { id: 'srv-a', revision: 7, order: 3 }])
  expect((await server.inject('/instances/srv-b')).statusCode).toBe(404)
  expect((await server.inject('/instances/srv-a?reason')).json()).toEqual({ id: 'srv-a', revision: 7, order: 3 })
  expect((await server.inject('/instances/srv-b?reason')).json()).toEqual({
    id: 'srv-b',
    revision: null,
    reason: 'the store was lost 3 s ago',
  })
  expect((await server.inject('/instances/srv-c?reason')).json()).toMatchObject({
    reason: 'the firewall has not admitted the guest yet; the store was lost 3 s ago',
  })
  const held = await server.inject('/instances/srv-c')
  expect([held.statusCode, held.json()]).toEqual([
    409,
    { id: 'srv-c', revision: 7, order: 3, reason: 'the firewall has not admitted the guest yet' },
  ])
  expect((await server.inject('/instances/srv-d')).json()).toEqual({
    id: 'srv-d',
    revision: 7,
    order: 3,
    reason: 'its link has no possible name',
    final: true,
  })
})

test('on the unix socket the firewall agent gets the document, and reports what it applied', async () => {
  const reports: unknown[] = []
  const server = buildSocketServer(parts({ reports }), 64)
  const post = (payload: object) => server.inject({ method: 'POST', url: '/firewall', payload })
  expect((await server.inject('/firewall?applied=a.1')).json()).toEqual(DOCUMENT)
  expect((await post({ applied: 'a.1', failed: 'no' })).json()).toEqual(DOCUMENT)
  expect((await post({ applied: null })).json()).toEqual(DOCUMENT)
  expect((await post({ applied: 'none' })).statusCode).toBe(503)
  expect((await post({ failed: 'no' })).statusCode).toBe(400)
  expect((await post({ applied: 'x'.repeat(100_000) })).statusCode).toBe(413)
  expect(reports).toEqual([
    undefined,
    { applied: 'a.1', failed: 'no', packets: undefined },
    { applied: undefined, failed: undefined, packets: undefined },
    { applied: 'none', failed: undefined, packets: undefined },
  ])
  expect((await server.inject('/livez')).statusCode).toBe(200)
})

test('TCP has metrics and health only, with any Host header', async () => {
  const server = aTcpServer()
  const headers = { host: 'hv1.example:9169' }
  const statuses = async (urls: readonly string[], method: 'GET' | 'POST') =>
    Promise.all(urls.map(async (url) => (await server.inject({ method, url, headers })).statusCode))
  const open = ['/metrics', '/livez', '/readyz']
  expect(await statuses(open, 'GET')).toEqual([200, 200, 200])
  const others = ['/', '/instances/srv-a', '/instances/srv-a/reports', '/explain?id=srv-a', '/firewall?applied=a.1']
  expect(new Set(await statuses(others, 'GET'))).toEqual(new Set([404]))
  expect(new Set(await statuses([...open, ...others], 'POST'))).toEqual(new Set([404]))
})

test('the unix socket refuses a Host header of another site, which a browser sends after DNS rebinding', async () => {
  const reports: unknown[] = []
  const server = buildSocketServer(parts({ reports }), 64)
  const statusOf = async (host: string, method: 'GET' | 'POST', url: string) =>
    (await server.inject({ method, url, headers: { host }, ...(method === 'POST' && { payload: { applied: 'a.1' } }) }))
      .statusCode
  for (const host of ['localhost:9169', '127.0.0.1:9169']) expect(await statusOf(host, 'GET', '/')).toBe(200)
  for (const url of ['/', '/metrics', '/explain?id=srv-a', '/instances/srv-a/reports'])
    expect([url, await statusOf('evil.example:9169', 'GET', url)]).toEqual([url, 421])
  expect(await statusOf('evil.example:9169', 'POST', '/firewall')).toBe(421)
  expect(reports).toEqual([])
})

test('what is not an id or not a network gets 400, and is not looked up', async () => {
  const diagnosed: string[] = []
  const server = buildSocketServer(parts({ diagnosed }), 64)
  for (const id of ['..%2Fother%2Ftext', '%00', 'a%20b', '-a'])
    expect([id, (await server.inject(`/instances/${id}?reason`)).statusCode]).toEqual([id, 400])
  expect((await server.inject('/explain?address=10.0.0.2&network=..%2Fred')).statusCode).toBe(400)
  expect(diagnosed).toEqual([])
})

test('H9: reports are 200, 404 if not served here, 400 if not an id', async () => {
  const server = buildSocketServer(parts(), 8)
  expect(Value.Check(ReportsSchema, (await server.inject('/instances/srv-a/reports')).json())).toBe(true)
  expect((await server.inject('/instances/srv-b/reports')).statusCode).toBe(404)
  expect((await server.inject('/instances/a%20b/reports')).statusCode).toBe(400)
})

test('/explain says what a guest at an address gets; 400 if it is not an address', async () => {
  const server = aServer()
  expect((await server.inject('/explain?address=10.0.0.2')).json()).toMatchObject({
    network: 'default',
    address: '10.0.0.2',
  })
  expect((await server.inject('/explain?address=10.0.0.2&network=blue')).json()).toMatchObject({
    network: 'blue',
    address: '10.0.0.2',
  })
  expect((await server.inject('/explain?address=x')).statusCode).toBe(400)
})

test('the status page has its question, and headers that let a browser run nothing; 503 if too many wait', async () => {
  const server = aServer()
  const page = await server.inject('/?q=%20srv-a&page=2')
  expect([page.statusCode, page.json()]).toEqual([200, { search: 'srv-a', page: 2 }])
  expect(page.headers).toMatchObject(PAGE_HEADERS)
  const busy = await server.inject('/?q=busy')
  expect([busy.statusCode, busy.headers['retry-after']]).toEqual([503, '1'])
})

test('/explain with an id: 200 for the instance, 404 with the reason if not served, 400 if no id', async () => {
  const server = aServer()
  for (const [id, status] of [
    ['srv-a', 200],
    ['srv-b', 404],
  ] as const) {
    const answer = await server.inject(`/explain?id=${id}`)
    expect([answer.statusCode, Value.Check(InstanceExplanationSchema, answer.json())]).toEqual([status, true])
  }
  expect((await server.inject('/explain?id=a%20b')).statusCode).toBe(400)
})
