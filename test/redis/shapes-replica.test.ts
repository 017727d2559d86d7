/**
 * A replica as the store, without Sentinel: the daemon uses it while it follows its primary, and again when it is
 * promoted.
 */
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, aStore, connected, guestsWithoutPause, logsReason, record, serves } from '../support/redis/shapes.ts'

t.test('a daemon uses a replica that follows its primary, else logs it, and uses it as primary again', async (t) => {
  const primary = await startRedis(t, ['--repl-diskless-sync-delay', '0'])
  const replica = await startRedis(t, ['--replicaof', `127.0.0.1 ${primary.port}`])
  const store = await aStore(t, primary.url)
  const daemon = await aDaemon(t, replica.url)
  await connected(daemon)
  await store.put(record(1))
  await serves(daemon, 1)
  const guests = guestsWithoutPause(t, daemon)
  await primary.kill()
  await logsReason(daemon, /^this is a replica that lost its primary$/)
  await connected(daemon, false)
  await replica.client.call('REPLICAOF', 'NO', 'ONE')
  await (await aStore(t, replica.url)).put(record(2))
  await serves(daemon, 2)
  t.same(await guests.stop(), [])
})

t.test('a daemon reconnects to a primary that becomes a replica, and so sees its new content', async (t) => {
  const [first, second] = [await startRedis(t), await startRedis(t, ['--repl-diskless-sync-delay', '0'])]
  const store = await aStore(t, second.url)
  await (await aStore(t, first.url)).put(record(1))
  await store.put(record(2))
  const daemon = await aDaemon(t, first.url)
  await serves(daemon, 1)
  await first.client.call('REPLICAOF', '127.0.0.1', String(second.port))
  await serves(daemon, 2)
  await until(() => daemon.log.filter(({ msg }) => msg === 'the store is connected').length > 1, 'a second connection')
  await store.put(record(3))
  await serves(daemon, 3)
})
