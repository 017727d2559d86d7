/** Changes of one account run one after another, and other accounts do not wait for them. */
import AsyncLock from 'async-lock'
import pg from 'pg'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { buildComputeServer } from '../../src/api/compute/server.ts'
import { Waiters } from '../../src/api/compute/waiters.ts'
import { ACCOUNT_QUEUE, AccountChanges } from '../../src/api/database/account-changes.ts'
import { refuse } from '../../src/api/refusal.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
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

/** Locks an account's row, as a slow change of another process does. Returns what unlocks it. */
async function lockAccount(t: Test, id: string): Promise<() => Promise<unknown>> {
  const client = await connect(t)
  await client.query('begin')
  await client.query('select from accounts where id = $1 for update', [id])
  return () => client.query('commit')
}

/** Waits until a connection waits for a lock, and returns how many do. */
async function waitingConnections(): Promise<number> {
  const count = async () => Number((await observer.query<{ count: string }>('select count(*) from pg_stat_activity where wait_event_type = \'Lock\'')).rows[0]!.count)
  await until(async () => await count() > 0, 'a change to wait for the lock')
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
