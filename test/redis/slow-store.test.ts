/** A connection of notices that is dead while commands still get their replies (invariant 4). */
import t from 'tap'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { startSlowLink } from '../support/redis/slow-link.ts'
import { aDaemon, aStore, serves } from '../support/redis/shapes.ts'

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
