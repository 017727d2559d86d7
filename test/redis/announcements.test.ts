/**
 * How daemons announce their hypervisors, with a real Redis: for publishers of this version and earlier daemons,
 * whatever a daemon writes.
 */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { sentBy, startRedis, type TestRedis } from '../support/redis/redis.ts'
import { aStore, record, SECRET, urlAs } from '../support/redis/shapes.ts'

const KEYS = keysOf('gb1')
const LONG = Buffer.alloc(32 * 1024 * 1024, 'x')
const A_MEBIBYTE = 1024 * 1024

let redis: TestRedis
t.before(async () => {
  redis = await startRedis()
})
t.teardown(() => redis.stop())
t.beforeEach(async () => {
  await redis.client.flushall()
})

/** Publishes for one hypervisor. Returns the names that no daemon has announced. */
async function unannounced(store: Publisher, revision: number, hypervisor = 'hv1'): Promise<unknown> {
  const put = await store.put(record(revision, { hypervisors: [hypervisor] }))
  return put.kind === 'published' ? put.unannounced : put
}

const names = async (store: Publisher) => (await store.hypervisors()).map(({ name }) => name)

t.test('the announcements of some thousand hypervisors are listed by name', async (t) => {
  const store = await aStore(t, redis.url)
  const all = Array.from({ length: 2500 }, (_, i) => `hv${String(i).padStart(4, '0')}`)
  const pipeline = redis.client.pipeline()
  for (const name of all)
    pipeline.set(
      KEYS.announcement(name),
      JSON.stringify({ version: '1.2.3', instances: 7, seenAt: '2026-11-22T00:00:00Z' }),
    )
  await pipeline.set('imds:{gb2}:announcement:other', '{}').set(KEYS.announcement('no name'), '{}').exec()
  t.same(await names(store), all)
  t.same((await store.hypervisors())[2], {
    name: 'hv0002',
    version: '1.2.3',
    instances: 7,
    seenAt: '2026-11-22T00:00:00Z',
  })
  t.same([await unannounced(store, 1, 'hv2499'), await unannounced(store, 2, 'hv2500')], [[], ['hv2500']])
})

t.test('announcements of earlier daemons, in one hash, are read too', async (t) => {
  const store = await aStore(t, redis.url)
  await redis.client.hset(
    KEYS.hypervisors,
    'hv1',
    '{"version":"0.1.0","instances":1,"seenAt":"2026"}',
    'hv2',
    '{"version":"0.1.0"}',
  )
  await redis.client.set(KEYS.announcement('hv2'), '{"version":"0.2.0"}')
  t.match(await store.hypervisors(), [
    { name: 'hv1', version: '0.1.0', instances: 1, seenAt: '2026' },
    { name: 'hv2', version: '0.2.0' },
  ])
  t.same(await unannounced(store, 1), [])
})

t.test('a long announcement is not read: it stops neither publishes nor the list', async (t) => {
  const store = await aStore(t, redis.url)
  await redis.client.set(KEYS.announcement('hv1'), LONG)
  await redis.client.hset(KEYS.hypervisors, 'hv1', LONG, 'hv2', LONG)
  const before = await sentBy(redis)
  t.same(await unannounced(store, 1), [])
  t.same(await store.hypervisors(), [{ name: 'hv1', version: '', instances: 0, seenAt: '' }])
  t.ok((await sentBy(redis)) - before < A_MEBIBYTE, 'Redis has sent less than a mebibyte')
})

t.test('without the new rights a publisher publishes without warnings, and the list names the right', async (t) => {
  await redis.client.call(
    'ACL',
    'SETUSER',
    'earlier',
    'on',
    '>secret',
    '~*',
    '&*',
    '+@all',
    '-scan',
    '-getrange',
    '-memory',
    '-hstrlen',
  )
  const store = await aStore(t, urlAs('earlier', redis), SECRET)
  await redis.client.set(KEYS.announcement('hv1'), '{}')
  t.same([await unannounced(store, 1), await unannounced(store, 2, 'hv2')], [[], []])
  await t.rejects(store.hypervisors(), /give it \+scan /)
})
