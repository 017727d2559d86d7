/** A distant Redis, and an instance that changes faster than responses arrive: the daemon still follows the store. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { until } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { startSlowLink } from '../support/redis/slow-link.ts'
import { aDaemon, aStore, hostnameOf, serves } from '../support/redis/shapes.ts'

const KEYS = keysOf('gb1')
const INSTANCES = 21
t.test('resyncs complete with a delay of 400 ms while one instance changes without a pause', async (t) => {
  const redis = await startRedis(t)
  const link = await startSlowLink(redis.port, 400)
  t.teardown(() => link.stop())
  const store = await aStore(t, redis.url)
  for (let n = 1; n <= INSTANCES; n++) await store.put(aLocalInstance(n))
  const changes = { stopped: false, revision: 1 }
  const publishing = (async () => {
    while (!changes.stopped) {
      await store.put(aLocalInstance(1, ++changes.revision))
      await sleep(5)
    }
  })()
  t.teardown(async () => {
    changes.stopped = true
    await publishing
  })
  const daemon = await aDaemon(t, `redis://127.0.0.1:${link.port}`, {}, { IMDS_RESYNC_SECONDS: '1' })

  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  t.equal(await daemon.metric('imds_view_instances'), INSTANCES)
  const notices = await daemon.metric('imds_notices_total')
  await redis.client
    .multi()
    .del(KEYS.instance('srv-n7'))
    .hdel(KEYS.hypervisor('hv1'), 'srv-n7')
    .hdel(KEYS.instances, 'srv-n7')
    .hdel(KEYS.addresses('default'), '127.0.0.7')
    .set(KEYS.tombstone('srv-n7'), `1 ${Date.now() * 1000}`)
    .exec()
  await until(async () => (await daemon.metric('imds_view_instances')) === INSTANCES - 1, 'a removal without a notice')
  t.ok((await daemon.metric('imds_notices_total')) > notices, 'other changes continued meanwhile')
  const published = changes.revision
  await until(
    async () => Number(/^r(\d+)\./.exec(await hostnameOf(daemon))?.[1]) >= published,
    'the changes of the other instance',
  )
})

t.test('invariant 4: a daemon leaves a server whose notices no longer arrive, and finds what it missed', async (t) => {
  const redis = await startRedis(t)
  const link = await startSlowLink(redis.port, 0)
  t.teardown(() => link.stop())
  const store = await aStore(t, redis.url)
  await store.put(aLocalInstance(1))
  const daemon = await aDaemon(t, `redis://127.0.0.1:${link.port}`)
  await serves(daemon, 1)
  link.freeze(1) // the connection of notices, which is the second one; commands still get their replies
  await store.put(aLocalInstance(1, 2))
  await serves(daemon, 2, 1, 60_000)
  t.equal(daemon.log.filter(({ code, level }) => code === 'store-lost' && level === 'warn').length, 1)
})
