/** Changes of one account run one after another, and its reads few at once. Other accounts do not wait for them. */
import { createConnection, type AddressInfo } from 'node:net'
import AsyncLock from 'async-lock'
import pg from 'pg'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { buildComputeServer } from '../../src/api/compute/server.ts'
import { Waiters } from '../../src/api/compute/waiters.ts'
import { ACCOUNT_QUEUE, AccountChanges } from '../../src/api/database/account-changes.ts'
import { READ_SHARE } from '../../src/api/read-share.ts'
import { refuse } from '../../src/api/refusal.ts'
import { ADA, CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const api = await anApi(t, { compute: 'reported' })
const { tables, connection } = api.database

/** A connection beside the pool. */
async function connect(t: Test): Promise<pg.Client> {
  const client = new pg.Client(connection)
  await client.connect()
  t.teardown(() => client.end())
  return client
}
const observer = await connect(t)
const token = await api.token(CLIENT_OF[ONE])

/** Locks an account's row, as a slow change of another process does. Returns what unlocks it. */
async function lockAccount(t: Test, id: string): Promise<() => Promise<unknown>> {
  const client = await connect(t)
  await client.query('begin')
  await client.query('select from accounts where id = $1 for update', [id])
  return () => client.query('commit')
}

/** Locks a table, so that its reads wait. Returns what unlocks it. */
async function lockTable(t: Test, table: string): Promise<() => Promise<unknown>> {
  const client = await connect(t)
  await client.query('begin')
  await client.query(`lock table ${table}`)
  return () => client.query('commit')
}

/** Waits until so many connections wait for a lock, and returns how many do. */
async function waitingConnections(atLeast = 1): Promise<number> {
  const count = async () => Number((await observer.query<{ count: string }>('select count(*) from pg_stat_activity where wait_event_type = \'Lock\'')).rows[0]!.count)
  await until(async () => await count() >= atLeast, 'connections to wait for the lock')
  return count()
}

const change = (account: typeof ONE | typeof TWO) => api.call('POST', '/1.0/config_maps', { data: {} }, account)

t.test('40 changes of one account hold one connection while they wait, and other accounts are served', async (t) => {
  await Promise.all([change(ONE), change(TWO)]) // both have an access token now
  const unlock = await lockAccount(t, ONE)
  const changes = Array.from({ length: 40 }, () => change(ONE))
  t.equal(await waitingConnections(), 1)
  t.match(await change(TWO), { status: 200 })
  t.match(await api.call('GET', '/1.0/config_maps', undefined, ONE), { status: 200 }, 'nor does reading wait')
  await unlock()
  t.strictSame((await Promise.all(changes)).map(({ status }) => status), Array.from({ length: 40 }, () => 200))
})

t.test('a request of an account for which too many changes wait gets 503 with Retry-After', async (t) => {
  const unlock = await lockAccount(t, ONE)
  const requests = Array.from({ length: ACCOUNT_QUEUE.maxPending + 2 }, () => api.call('DELETE', '/1.0/cloud_ips/cip-zzzzz')) // one of them does not wait
  t.match(await Promise.race(requests), {
    status: 503, headers: { 'retry-after': '1' }, body: { error_name: 'service_unavailable', errors: ['other changes of this account take too long: try again'] },
  })
  t.match(await change(TWO), { status: 200 })
  await unlock()
  t.ok((await Promise.all(requests)).some(({ status }) => status === 404), 'the others had their turn')
})

t.test('reports and placements of hypervisors wait in the same queue', async (t) => {
  const compute = buildComputeServer({
    tables, accounts: api.accounts, waiters: new Waiters(), retrySeconds: 60, pollMs: 60_000, counted: () => { /* not counted */ }, unreadable: () => { /* not counted */ }, audit: { write: () => { /* not kept */ } }, log: pino({ level: 'silent' }),
  }, undefined)
  t.teardown(() => compute.close())
  const { id } = (await api.call('POST', '/1.0/servers', { image: 'img-deb12' })).body as { id: string }
  const [action] = (await compute.inject('/hypervisors/hv-1/actions')).json<{ id: number }[]>()
  const unlock = await lockAccount(t, ONE)
  const requests = Array.from({ length: 20 }, () => [
    compute.inject({ method: 'POST', url: `/hypervisors/hv-1/actions/${String(action!.id)}/outcome`, payload: { outcome: 'succeeded' } }),
    compute.inject({ method: 'POST', url: `/servers/${id}/seal` }),
  ]).flat()
  t.equal(await waitingConnections(), 1)
  t.match(await change(TWO), { status: 200 })
  await unlock()
  t.strictSame((await Promise.all(requests)).map(({ statusCode }) => statusCode), Array.from({ length: 40 }, () => 200))
})

t.test('after a change that was refused, and one that failed, the next one runs, and the queue is forgotten', async (t) => {
  const queues = new AsyncLock()
  const accounts = new AccountChanges(tables, queues)
  const results = await Promise.allSettled([
    accounts.commit(ONE, () => Promise.resolve(refuse('resource_conflict', 'no'))), accounts.commit(ONE, () => Promise.reject(new Error('failed'))),
    accounts.commit(ONE, () => Promise.resolve('done')),
  ])
  t.match(results, [{ value: { name: 'resource_conflict' } }, { reason: { message: 'failed' } }, { value: 'done' }])
  t.notOk(queues.isBusy())
})

t.test('a change whose turn does not come in time is refused, changes nothing, and blocks no other', async (t) => {
  const queues = new AsyncLock({ timeout: 1, maxPending: 1 })
  const accounts = new AccountChanges(tables, queues)
  const unlock = await lockAccount(t, ONE)
  const first = accounts.commit(ONE, () => Promise.resolve('first'))
  const refusal = refuse('service_unavailable', 'other changes of this account take too long: try again')
  t.strictSame(await Promise.all([1, 2].map(() => accounts.commit(ONE, () => Promise.reject(new Error('it ran'))))), [refusal, refusal], 'after a time, and where too many wait')
  await unlock()
  t.equal(await first, 'first')
  t.equal(await accounts.commit(ONE, () => Promise.resolve('next')), 'next')
  t.notOk(queues.isBusy())
})

t.test('40 reads of one account hold four connections, and those of other accounts and users are answered', async (t) => {
  const ada = await api.userToken(ADA)
  await Promise.all([api.call('GET', '/1.0/zones', undefined, ONE), api.call('GET', '/1.0/zones', undefined, TWO)])
  const unlock = await lockTable(t, 'interfaces')
  const reads = Array.from({ length: 40 }, () => api.call('GET', '/1.0/servers', undefined, ONE))
  t.equal(await waitingConnections(READ_SHARE.atOnce), READ_SHARE.atOnce)
  t.match(await api.call('GET', '/1.0/zones', undefined, TWO), { status: 200 })
  t.match(await api.callWith(ada, 'GET', `/1.0/config_maps?account_id=${ONE}`), { status: 200 }, 'a user has a share beside the API clients of the account')
  t.equal(await waitingConnections(), READ_SHARE.atOnce)
  await unlock()
  t.strictSame((await Promise.all(reads)).map(({ status }) => status), Array.from({ length: 40 }, () => 200))
})

t.test('a read of an account for which too many reads wait gets 503 with Retry-After', async (t) => {
  const unlock = await lockTable(t, 'config_maps')
  const reads = Array.from({ length: READ_SHARE.atOnce + READ_SHARE.waitingMax + 1 }, () => api.call('GET', '/1.0/config_maps'))
  t.match(await Promise.race(reads), {
    status: 503, headers: { 'retry-after': '1' }, body: { error_name: 'service_unavailable', errors: ['other requests of this account or user take too long: try again'] },
  })
  await unlock()
  t.equal((await Promise.all(reads)).filter(({ status }) => status === 200).length, reads.length - 1)
})

t.test('reads that are refused, or whose client goes away, give their turn back', async (t) => {
  const unlock = await lockTable(t, 'interfaces')
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = api.server.server.address() as AddressInfo
  const gone = Array.from({ length: READ_SHARE.atOnce }, (_, i) => {
    const socket = createConnection(port, '127.0.0.1')
    socket.write(`GET /1.0/servers?n=${String(i)} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n\r\n`)
    return socket
  })
  t.equal(await waitingConnections(READ_SHARE.atOnce), READ_SHARE.atOnce)
  for (const socket of gone) socket.destroy()
  await unlock()
  for (let i = 0; i < 2 * READ_SHARE.atOnce; i++) t.match(await api.call('GET', `/1.0/servers?account_id=${TWO}`), { status: 404 })
  t.match(await api.call('GET', '/1.0/servers'), { status: 200 })
})
