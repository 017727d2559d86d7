import { expect, test } from 'vitest'
import { buildOperatorServer } from '../../../src/operator/server.ts'

function aServer(allow: string[] = [], ready = true) {
  return buildOperatorServer({
    allow, metrics: { contentType: 'text/plain; version=0.0.4', metrics: () => Promise.resolve('imds_up 1\n') }, readiness: () => ({ ready, instances: 3 }),
    revisionOf: (id) => id === 'srv-b' ? null : 7,
    holds: (id) => id === 'srv-c' ? { reason: 'the firewall has not let it in yet', isFinal: false } : null,
    explain: (network, address) => Promise.resolve(address === 'x' ? undefined : { network, address }),
    diagnose: (id) => Promise.resolve(id === 'srv-a' ? null : 'the store was lost 3 s ago'),
    firewall: { next: (after, applied) => Promise.resolve(after === 'none' ? undefined : { after, applied }) },
  })
}

test('metrics, liveness and readiness answer', async () => {
  const server = aServer()
  expect((await server.inject('/metrics')).body).toBe('imds_up 1\n')
  expect((await server.inject('/livez')).statusCode).toBe(200)
  const ready = await server.inject('/readyz')
  expect([ready.statusCode, ready.json()]).toEqual([200, { ready: true, instances: 3 }])
  expect((await aServer([], false).inject('/readyz')).statusCode).toBe(503)
})

test('it says which revision of an instance is answered for here', async () => {
  const server = aServer()
  const known = await server.inject('/instances/srv-a')
  expect([known.statusCode, known.json()]).toEqual([200, { id: 'srv-a', revision: 7 }])
  expect((await server.inject('/instances/srv-b')).statusCode).toBe(404)
  expect((await server.inject('/instances/srv-a?reason')).json()).toEqual({ id: 'srv-a', revision: 7 })
  expect((await server.inject('/instances/srv-b?reason')).json()).toEqual({ id: 'srv-b', revision: null, reason: 'the store was lost 3 s ago' })
  expect((await server.inject('/instances/srv-c?reason')).json()).toMatchObject({ reason: 'the firewall has not let it in yet; the store was lost 3 s ago' })
  const held = await server.inject('/instances/srv-c')
  expect([held.statusCode, held.json()]).toEqual([409, { id: 'srv-c', revision: 7, reason: 'the firewall has not let it in yet' }])
})

test('the firewall is given the view, and says what it has applied', async () => {
  const server = aServer()
  expect((await server.inject('/firewall?after=a.1&applied=')).json()).toEqual({ after: 'a.1', applied: '' })
  expect((await server.inject('/firewall')).json()).toEqual({})
  expect((await server.inject('/firewall?after=none')).statusCode).toBe(503)
})

test('only the listed networks may ask, by IPv4, IPv6 and v4-mapped address', async () => {
  const server = aServer(['10.1.0.0/16', 'fd00::/8'])
  const status = async (remoteAddress: string) => (await server.inject({ url: '/metrics', remoteAddress })).statusCode
  for (const address of ['10.1.2.3', '::ffff:10.1.2.3', 'fd00::1']) expect([address, await status(address)]).toEqual([address, 200])
  for (const address of ['10.2.0.1', '::ffff:10.2.0.1', 'fe80::1', '169.254.169.254']) expect([address, await status(address)]).toEqual([address, 403])
})

test('it explains what an address would be answered', async () => {
  const server = aServer()
  expect((await server.inject('/explain?address=10.0.0.2')).json()).toEqual({ network: 'default', address: '10.0.0.2' })
  expect((await server.inject('/explain?address=10.0.0.2&network=blue')).json()).toEqual({ network: 'blue', address: '10.0.0.2' })
  expect((await server.inject('/explain?address=x')).statusCode).toBe(400)
})
