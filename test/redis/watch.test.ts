/**
 * The daemon follows a real Redis: what guests get, what is kept, and what is logged. One daemon is used by all tests that
 * do not stop it or its store.
 */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, unlessReset, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aStore, hostnameOf, reasons, resynced, serves } from '../support/redis/shapes.ts'

const KEYS = keysOf('gb1')
const ID = '/latest/meta-data/instance-id'

const redis = await startRedis(t)
const environment = (url = redis.url, hypervisor = 'hv1') => ({
  IMDS_STORE: url,
  IMDS_REGION: 'gb1',
  IMDS_HYPERVISOR: hypervisor,
  IMDS_RESYNC_SECONDS: '1',
})
let store: Publisher
let daemon: TestDaemon
t.before(async () => {
  store = await aStore(t, redis.url)
  daemon = await startDaemon(t, environment())
})

t.test("a publish and its changes reach the guest's next GET; a removal makes it an unknown peer", async (t) => {
  t.equal((await daemon.get(ID)).status, 503)
  t.equal((await daemon.operator('/readyz')).status, 503, 'a daemon is not ready before anything was published')
  await store.put(aLocalInstance(1), Buffer.from('one'))
  await serves(daemon, 1)
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  await store.put(aLocalInstance(1, 2), Buffer.from([0, 255, 31, 139]))
  await serves(daemon, 2)
  t.ok((await daemon.get('/latest/user-data')).body.equals(Buffer.from([0, 255, 31, 139])))
  await store.remove('srv-n1')
  await until(async () => (await unlessReset(daemon.get(ID)))?.status === 503, 'the removal')
})

t.test('the checks of a connection that is well do not end it', async (t) => {
  const pings = async () => Number(/cmdstat_ping:calls=(\d+)/.exec(await redis.client.info('commandstats'))?.[1] ?? 0)
  const before = await pings()
  await until(async () => (await pings()) > before + 1, 'two checks of the connection')
  t.same(reasons(daemon), [])
})

t.test('an instance that is put or removed while it is read is not lost: its tombstone is read twice', async (t) => {
  const monitor = await redis.client.monitor()
  t.teardown(() => monitor.disconnect())
  const read: string[] = []
  monitor.on('monitor', (_time: string, [command = '', key]: string[], source: string) => {
    const isRead = key === KEYS.tombstone('srv-n11') || (key === KEYS.instance('srv-n11') && command === 'hmget')
    if (isRead && source !== 'lua') read.push(command)
  })
  await store.put(aLocalInstance(11))
  await serves(daemon, 1, 11)
  t.strictSame(read.slice(-3), ['getrange', 'hmget', 'getrange'])
})

t.test('invariants 3, 6: a faulty record leaves the last good state, is reported once, harms no other', async (t) => {
  await store.put(aLocalInstance(5), Buffer.from('good'))
  await store.put(aLocalInstance(6))
  await serves(daemon, 1, 5)
  await serves(daemon, 1, 6)
  const key = KEYS.instance('srv-n5')
  const good = await redis.client.hget(key, 'record')
  const linesBefore = daemon.log.length
  const writeFault = async (...fields: string[]) => {
    const digest = `broken ${fields.join()}`
    await redis.client.hset(key, ...fields, 'digest', digest)
    await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n5', digest)
    await redis.client.publish(KEYS.notices('hv1'), 'srv-n5')
  }
  // test/unit/imdsd/view/validate.test.ts and test/unit/store/redis/ have every kind of fault
  for (const [what, reason, fields] of [
    ['a record that is not JSON', 'unreadable', ['record', '{']],
    ["another instance's record", 'id', ['record', JSON.stringify(aLocalInstance(6, 2))]],
    ['user-data that the record does not describe', 'user-data', ['record', good!, 'user-data', 'evil']],
  ] as [string, string, string[]][]) {
    await writeFault(...fields)
    await until(async () => (await daemon.metric(`imds_record_faults_total{reason="${reason}"}`)) === 1, what)
    await resynced(daemon)
    t.equal(await daemon.metric(`imds_record_faults_total{reason="${reason}"}`), 1, `${what} is counted once`)
    t.equal(await daemon.metric('imds_view_faulty_records'), 1)
    t.equal(await hostnameOf(daemon, 5), 'r1.n5.example.com')
    t.equal((await daemon.get('/latest/user-data', '127.0.0.5')).body.toString(), 'good')
  }
  await store.put(aLocalInstance(6, 2))
  await serves(daemon, 2, 6)
  await writeFault('user-data', 'good')
  await until(async () => (await daemon.metric('imds_view_faulty_records')) === 0, 'the repair')
  const lines = daemon.log.slice(linesBefore)
  t.equal(lines.filter(({ msg }) => msg.startsWith('faulty record')).length, 3)
  t.notMatch(JSON.stringify(lines), /evil|goo"/, 'invariant 9: no user-data in the log')
})

t.test('invariant 6: a key of the wrong type is a fault of its instance only, and resyncs complete', async (t) => {
  const failed = await daemon.metric('imds_resyncs_total{result="failed"}')
  await redis.client.set(KEYS.instance('srv-n8'), 'x')
  await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n8', 'x', 'srv-n9', 'x')
  await redis.client.hset(KEYS.tombstone('srv-n9'), 'x', 'y')
  await until(async () => (await daemon.metric('imds_view_faulty_records')) === 2, 'the faults')
  await resynced(daemon)
  t.equal(await daemon.metric('imds_resyncs_total{result="failed"}'), failed)
  await redis.client.del(KEYS.instance('srv-n8'))
  await store.put(aLocalInstance(8))
  await serves(daemon, 1, 8)
})

t.test('invariant 8: absence is not removal; a tombstone is, even in a store without other traces', async (t) => {
  for (const { id } of await store.list()) await store.remove(id)
  await until(async () => (await daemon.metric('imds_view_instances')) === 0, 'an empty view')
  await store.put(aLocalInstance(1, 9), Buffer.from('mine'))
  await store.put(aLocalInstance(2, 9))
  await serves(daemon, 9)
  await serves(daemon, 9, 2)
  const emptyResyncs = async () => await daemon.metric('imds_resyncs_total{result="uninitialised"}')
  const [linesBefore, resyncs] = [daemon.log.length, await emptyResyncs()]
  await redis.client.flushall()
  await until(async () => (await emptyResyncs()) > resyncs + 1, 'two resyncs of an empty store')
  t.equal(daemon.log.slice(linesBefore).filter(({ msg }) => msg.includes('has nothing of this region')).length, 1)
  await store.put(aLocalInstance(2, 9))
  await resynced(daemon)
  t.equal((await daemon.get('/latest/user-data')).body.toString(), 'mine')
  t.equal(await daemon.metric('imds_view_absent_instances'), 1)
  await store.remove('srv-n1', 9)
  await until(async () => (await unlessReset(daemon.get(ID)))?.status === 503, 'the removal')
  t.equal(await hostnameOf(daemon, 2), 'r9.n2.example.com')
})

t.test('a region emptied and initialised again is noticed without resync, and readiness says so', async (t) => {
  const emptied = await startRedis(t)
  const own = await aStore(t, emptied.url)
  const serving = await startDaemon(t, { ...environment(emptied.url), IMDS_RESYNC_SECONDS: '3600' })
  await own.put(aLocalInstance(1))
  await serves(serving, 1)
  const initialisedAt = Number(await emptied.client.get(KEYS.region)) // in seconds
  await until(async () => Number((await emptied.client.time())[0]) > initialisedAt, 'another second')
  await emptied.client.flushall()
  await own.initialise()
  const absent = () => serving.condition('instance-absent')
  await until(async () => (await absent()) !== undefined, 'the daemon to notice it')
  t.match(await absent(), /^1 served instance is no longer in the store: srv-n1, revision 1$/)
  t.match(JSON.parse((await serving.operator('/readyz')).body.toString()), {
    ready: true,
    instances: 1,
    absent: 1,
  })
})

t.test('G2: while Redis is down from the start, guests get 503 with Retry-After and never 404', async (t) => {
  const without = await startDaemon(t, environment('redis://127.0.0.1:1'))
  for (const path of ['/', ID, '/latest/user-data', '/nothing'])
    t.match(await without.get(path), { status: 503, headers: { 'retry-after': '1' } })
  t.equal((await without.operator('/livez')).status, 200)
  t.match(JSON.parse((await without.operator('/readyz')).body.toString()), { ready: false, connected: false })
  matchAll(t, reasons(without), [/ECONNREFUSED/], 'the cause is logged once')
})
