/**
 * Redis Cluster: clients find the node of the region, follow it when its slot moves, and use the replica when its
 * primary fails.
 */
import t from 'tap'
import { unlessReset, until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { startCluster } from '../support/redis/cluster.ts'
import type { TestRedis } from '../support/redis/redis.ts'
import { aDaemon, aStore, guestsWithoutPause, publish, record, serves } from '../support/redis/shapes.ts'

const otherRecord = (n: number, revision = 1) =>
  record(revision, {
    id: `srv-x${n}`,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`127.0.1.${n}/8`] }],
  })
/** The names of our connections to a node. */
const connectionNames = async ({ client }: TestRedis) =>
  Array.from(String(await client.call('CLIENT', 'LIST')).matchAll(/ name=(imds\S*) /g), ([, name]) => name!).sort()

t.test('daemon, library and imdsctl find the node of the region, and notices arrive', async (t) => {
  const { url, owner, other } = await startCluster(t)
  const store = await aStore(t, url)
  await store.put(record(1))
  const daemon = await aDaemon(t, url)
  await serves(daemon, 1)
  await store.put(record(2))
  await serves(daemon, 2)
  matchAll(t, await connectionNames(owner), ['imds', 'imds-notices', 'imds-publisher'])
  await t.rejects(
    aStore(t, `redis://127.0.0.1:${other.port}`),
    /cannot use the store: this is a node of a Cluster: its URL must begin with redis-cluster/,
  )
  t.match(
    (await must([process.execPath, IMDSCTL, '--store', url, '--region', 'gb1', 'list'])).toString(),
    /^srv-n1 +2 +hv1/m,
  )
})

t.test("while the region's slot moves, guests notice nothing, reads work, and a publish waits", async (t) => {
  const cluster = await startCluster(t)
  const { url, owner, other } = cluster
  const store = await aStore(t, url)
  await store.put(record(1))
  for (let n = 1; n <= 50; n++) await store.put(otherRecord(n), Buffer.from(`user-data ${n}`))
  const daemon = await aDaemon(t, url, {}, { IMDS_RESYNC_SECONDS: '1' })
  await until(async () => (await daemon.metric('imds_view_instances')) === 51, 'all instances')
  const guests = guestsWithoutPause(t, daemon)
  const resyncs = (result: string) => daemon.metric(`imds_resyncs_total{result="${result}"}`)

  await cluster.moveHalf()
  const before = await resyncs('completed')
  await until(async () => (await resyncs('completed')) > before + 2, 'three resyncs while the region is on two nodes')
  const newDaemon = await aDaemon(t, url)
  await until(
    async () => (await newDaemon.metric('imds_view_instances')) === 51,
    'all instances in a daemon that starts now',
  )
  t.equal((await newDaemon.get('/latest/user-data', '127.0.1.7')).body.toString(), 'user-data 7')
  const refusedScripts = async () =>
    [
      ...String(await owner.client.call('INFO', 'COMMANDSTATS')).matchAll(
        /cmdstat_eval(?:sha)?:.*rejected_calls=(\d+),failed_calls=(\d+)/g,
      ),
    ].reduce((sum, [, rejected, failed]) => sum + Number(rejected) + Number(failed), 0)
  const refusedBefore = await refusedScripts()
  let done = false
  const publishing = Promise.all([store.put(record(2)), store.put(otherRecord(51)), store.remove('srv-x1')]).then(
    (results) => {
      done = true
      return results
    },
  )
  await until(async () => (await refusedScripts()) > refusedBefore, 'Redis to refuse the script while the slot moves')
  t.equal(done, false)

  t.equal(await resyncs('failed'), 0)
  await cluster.moveRest()
  t.match(await publishing, [{ kind: 'published' }, { kind: 'published' }, { kind: 'removed' }])
  await serves(daemon, 2)
  await until(
    async () => (await daemon.get('/latest/meta-data/instance-id', '127.0.1.51')).status === 200,
    'the new instance',
  )
  await until(
    async () => (await unlessReset(daemon.get('/latest/meta-data/instance-id', '127.0.1.1')))?.status === 503,
    'the removal',
  )
  t.same(await guests.stop(), [])
  t.equal(await daemon.metric('imds_view_absent_instances'), 0)
  await until(async () => (await connectionNames(owner)).length === 0, 'the daemons to leave the old node')
  t.ok((await connectionNames(other)).includes('imds-notices'), 'the daemons are connected to the new node')
})

t.test("guests notice nothing when the region's primary fails; its replica takes over", async (t) => {
  const { url, owner, replica } = await startCluster(t)
  const store = await aStore(t, url)
  await store.put(record(1))
  const daemon = await aDaemon(t, url)
  await serves(daemon, 1)
  await until(async () => Number(await replica.client.call('DBSIZE')) > 0, 'the record in the replica')
  const guests = guestsWithoutPause(t, daemon)
  await owner.kill()
  await publish(store, 2)
  await serves(daemon, 2)
  t.same(await guests.stop(), [])
  matchAll(t, await connectionNames(replica), ['imds', 'imds-notices', 'imds-publisher'])
})
