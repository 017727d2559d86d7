/**
 * The daemon follows a real Redis: what guests get, what is kept, and what is logged. One daemon is used by all tests that
 * do not stop it or its store.
 */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, unlessReset, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aStore, reasons, resynced, serves } from '../support/redis/shapes.ts'

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
  t.match(await absent(), /^served instances that are no longer in the store \(1\): srv-n1, revision 1$/)
  t.match(JSON.parse((await serving.operator('/readyz')).body.toString()), {
    ready: true,
    instances: 1,
    absent: 1,
  })
})
