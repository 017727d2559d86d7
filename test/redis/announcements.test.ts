/**
 * How daemons announce their hypervisors, with a real Redis, whatever a daemon writes.
 */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { sentBy, startRedis } from '../support/redis/redis.ts'
import { aStore, record, SECRET, urlAs } from '../support/redis/shapes.ts'

const KEYS = keysOf('gb1')
const LONG = Buffer.alloc(32 * 1024 * 1024, 'x')
const A_MEBIBYTE = 1024 * 1024

const redis = await startRedis(t)
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

t.test('a long announcement is not read: it stops neither publishes nor the list', async (t) => {
  const store = await aStore(t, redis.url)
  await redis.client.set(KEYS.announcement('hv1'), LONG)
  const before = await sentBy(redis)
  t.same(await unannounced(store, 1), [])
  t.same(await store.hypervisors(), [{ name: 'hv1', version: '', instances: 0, seenAt: '' }])
  t.ok((await sentBy(redis)) - before < A_MEBIBYTE, 'Redis has sent less than a mebibyte')
})

t.test('without the right to scan a publisher publishes, and the list names the right', async (t) => {
  await redis.client.call('ACL', 'SETUSER', 'limited', 'on', '>secret', '~*', '&*', '+@all', '-scan')
  const store = await aStore(t, urlAs('limited', redis), SECRET)
  await redis.client.set(KEYS.announcement('hv1'), '{}')
  t.same([await unannounced(store, 1), await unannounced(store, 2, 'hv2')], [[], ['hv2']])
  await t.rejects(store.hypervisors(), /give it \+scan /)
})

t.test("the listener of a daemon's operators is listed if another machine can reach it", async (t) => {
  const store = await aStore(t, redis.url)
  for (const [name, operator] of Object.entries({
    a: '10.1.0.5:9169',
    b: '[fd00::5]:9169',
    c: '127.0.0.1:9169',
    d: '0.0.0.0:9169',
    e: 'host.example:9169',
    f: 'unix:/run/imds/operator.sock',
    g: 'http://10.1.0.5:9169/x',
    h: 5,
  }))
    await redis.client.set(KEYS.announcement(name), JSON.stringify({ operator }))
  t.same(
    (await store.hypervisors()).map(({ name, operator }) => [name, operator]),
    [
      ['a', '10.1.0.5:9169'],
      ['b', '[fd00::5]:9169'],
      ...['c', 'd', 'e', 'f', 'g', 'h'].map((name) => [name, undefined]),
    ],
  )
})
