/** Redis with Sentinel: the primary is killed, replaced or frozen, and Sentinels are killed and restarted. */
import { setTimeout } from 'node:timers/promises'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import type { RedisFiles } from '../../src/store/url.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { startMistakenSentinel, startWatched, type Watched } from '../support/redis/sentinel.ts'
import {
  aDaemon,
  aStore,
  connected,
  guestsWithoutPause,
  logsReason,
  publish,
  reasons,
  record,
  serves,
  urlAs,
  SECRET,
} from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'

interface SentinelSetup {
  readonly watched: Watched
  readonly url: string
  readonly servers: Watched['servers']
  readonly files: RedisFiles
}

async function startSetup(t: Test): Promise<SentinelSetup> {
  const directory = testDirectory(t, { password: 'sentinels\n' })
  const watched = await startWatched(t, 'sentinels')
  return {
    watched,
    url: watched.url,
    servers: watched.servers,
    files: { sentinelPasswordFile: `${directory}/password` },
  }
}

/** The names of our connections to a server. */
const connectionNames = async ({ client }: TestRedis) =>
  Array.from(String(await client.call('CLIENT', 'LIST')).matchAll(/ name=(imds\S*) /g), ([, name]) => name!).sort()

/** Counts the connections that a Sentinel (HOST:PORT) got: each question of ours is one. */
function connectionsOf(t: Test, host: string): () => Promise<number> {
  const client = new Redis(`redis://:sentinels@${host}`)
  t.teardown(() => client.disconnect())
  return async () => Number(/total_connections_received:(\d+)/.exec(await client.info('stats'))![1])
}

t.test('guests notice nothing of a failover after the primary is killed; later publishes arrive', async (t) => {
  const { url, servers, files } = await startSetup(t)
  const store = await aStore(t, url, files)
  await store.put(record(1))
  const daemon = await aDaemon(t, url, files)
  await serves(daemon, 1)
  await until(async () => (await servers[1].client.exists('imds:{gb1}')) === 1, 'the record in the replica')
  const guests = guestsWithoutPause(t, daemon)
  await servers[0].kill()
  await publish(store, 2)
  await serves(daemon, 2)
  t.match(
    await servers[1].client.hget('imds:{gb1}:instance:srv-n1', 'record'),
    '"revision":2',
    'the new primary has the publish',
  )
  await servers[0].restart()
  await until(
    async () => (await servers[0].client.info('replication')).includes('role:slave'),
    'the old primary to be a replica',
    30_000,
  )
  await store.put(record(3))
  await serves(daemon, 3)
  t.same(await guests.stop(), [])
  const warnings = daemon.log
    .filter(({ level, code }) => level === 'warn' && String(code).startsWith('store'))
    .map(({ code }) => code)
  t.same(warnings, ['store-lost'], 'the operator is warned once')
})

t.test('E3: an address stays with its owner when a replica that lags is promoted', async (t) => {
  const { url, servers, files } = await startSetup(t)
  const store = await aStore(t, url, files)
  const daemon = await aDaemon(t, url, files)
  const owner = async () => (await daemon.get('/latest/meta-data/instance-id')).body.toString()
  await store.put(record(1))
  await until(async () => (await owner()) === 'srv-n1', 'the first owner to be served')
  await until(
    async () => (await servers[1].client.exists('imds:{gb1}:instance:srv-n1')) === 1,
    'the replica to have it',
  )
  await servers[0].client.call('ACL', 'SETUSER', 'default', '-psync', '-sync')
  await servers[0].client.call('CLIENT', 'KILL', 'TYPE', 'replica')
  await store.remove('srv-n1')
  await store.put(record(1, { id: 'srv-n2' }))
  await until(async () => (await owner()) === 'srv-n2', 'the next owner to be served')
  await servers[0].kill()
  await until(async () => (await servers[1].client.exists('imds:{gb1}:behind')) === 1, 'the mark "behind"', 60_000)
  t.equal(await servers[1].client.exists('imds:{gb1}:instance:srv-n1', 'imds:{gb1}:instance:srv-n2'), 1)
  t.equal(await owner(), 'srv-n2', 'the daemon has seen the former owner in the store again')
  await store.remove('srv-n1')
  await store.put(record(2, { id: 'srv-n2' }), 'none')
  await until(
    async () => (await daemon.get('/latest/meta-data/hostname')).body.toString().startsWith('r2.'),
    'revision 2',
  )
})

t.test('a daemon leaves a primary that becomes a replica by a failover, and connects to the new primary', async (t) => {
  const { watched, url, servers, files } = await startSetup(t)
  const daemon = await aDaemon(t, url, files)
  const store = await aStore(t, url, files)
  await store.put(record(1))
  await serves(daemon, 1)
  const guests = guestsWithoutPause(t, daemon)
  await watched.failover()
  await until(async () => (await watched.primary()) === servers[1], 'the other to be primary', 30_000)
  await until(
    async () => (await connectionNames(servers[1])).includes('imds-notices'),
    'the daemon to be connected to it',
    20_000,
  )
  t.notMatch(await connectionNames(servers[0]), ['imds'])
  await store.put(record(2))
  await serves(daemon, 2)
  t.same(await guests.stop(), [])
})

t.test('a daemon leaves a frozen primary for the new one; the old one changes nothing when it resumes', async (t) => {
  const { watched, url, servers, files } = await startSetup(t)
  const store = await aStore(t, url, files)
  await store.put(record(1))
  const daemon = await aDaemon(t, url, files)
  await serves(daemon, 1)
  const guests = guestsWithoutPause(t, daemon)
  await until(async () => (await servers[1].client.exists('imds:{gb1}')) === 1, 'the record in the replica')
  servers[0].process().kill('SIGSTOP')
  await until(async () => (await watched.primary()) === servers[1], 'the other to be primary', 30_000)
  await publish(await aStore(t, url, files), 2)
  await serves(daemon, 2)
  servers[0].process().kill('SIGCONT')
  await until(
    async () => (await servers[0].client.info('replication')).includes('role:slave'),
    'the old primary to be a replica',
    30_000,
  )
  await publish(store, 3)
  await serves(daemon, 3)
  t.same(await guests.stop(), [])
})

t.test('a former primary that only the Sentinels cannot reach is left by daemons and publishers', async (t) => {
  const {
    watched,
    servers: [former, primary],
    files: sentinelFiles,
  } = await startSetup(t)
  const files = { ...sentinelFiles, ...SECRET }
  for (const { client } of [former, primary])
    await client.call('ACL', 'SETUSER', 'imds', 'on', '>secret', '~*', '&*', '+@all')
  const url = urlAs('imds', watched)
  const store = await aStore(t, url, files)
  await store.put(record(1))
  const daemon = await aDaemon(t, url, files)
  await serves(daemon, 1)
  await until(async () => (await primary.client.exists('imds:{gb1}')) === 1, 'the record in the replica')
  // Only the Sentinels and the replica use the default user. Connections of the user imds go on.
  await former.client.call('ACL', 'SETUSER', 'default', 'off')
  await former.client.call('CLIENT', 'KILL', 'USER', 'default', 'SKIPME', 'yes')
  await until(async () => (await watched.primary()) === primary, 'the other to be primary', 30_000)
  t.match(await former.client.info('replication'), 'role:master', 'the former primary does not know of the failover')

  await logsReason(daemon, new RegExp(`^the Sentinels report a failover to 127\\.0\\.0\\.1:${primary.port}$`))
  await until(async () => {
    const connections = await Promise.all([former, primary].map(connectionNames))
    return connections[0]!.length === 0 && connections[1]!.join() === 'imds,imds-notices'
  }, 'all to leave the former primary')
  await store.put(record(2))
  await serves(daemon, 2)
  // One of three Sentinels knows nothing of the failover, or is a forgotten one of another setup that had more
  // failovers.
  for (const epoch of [0, 99]) {
    const mistaken = new URL(await startMistakenSentinel(t, former.port, epoch)).host
    const mixed = url.replace(/@[^,]+/, `@${mistaken}`)
    const stores = await Promise.all(Array.from({ length: 10 }, () => aStore(t, mixed, files)))
    t.same(await connectionNames(former), [], 'the answer of most Sentinels counts')
    for (const one of stores) await one.close() // they ask the Sentinels too
    if (epoch === 0) continue
    const other = await aDaemon(t, mixed, files)
    await serves(other, 2)
    const connections = connectionsOf(t, mistaken)
    const before = await connections()
    await until(
      async () => (await connections()) > before + 1,
      'the daemon to ask the mistaken Sentinel, and then all of them because of its answer',
    )
    await setTimeout(300) // a connection that ends is logged meanwhile
    t.same(reasons(other), [], 'a mistaken Sentinel does not end a connection')
  }
})

t.test('a publish waits while a former primary has too few replicas to take writes', async (t) => {
  const redis = await startRedis(t)
  const store = await aStore(t, redis.url)
  await redis.client.config('SET', 'min-replicas-to-write', '1')
  const publishing = store.put(record(1))
  await until(
    async () => (await redis.client.info('errorstats')).includes('errorstat_NOREPLICAS'),
    'Redis to refuse the write',
  )
  await redis.client.config('SET', 'min-replicas-to-write', '0')
  t.match(await publishing, { kind: 'published' })
})

t.test('unreachable Sentinels do not affect a connection; a lost one is restored when they return', async (t) => {
  const { watched, url, servers, files } = await startSetup(t)
  const daemon = await aDaemon(t, url, files)
  const store = await aStore(t, url, files)
  await store.put(record(1))
  await serves(daemon, 1)
  await watched.killSentinels()
  const pings = async () => Number(/cmdstat_ping:calls=(\d+)/.exec(await servers[0].client.info('commandstats'))?.[1])
  const before = await pings()
  await until(async () => (await pings()) > before, 'a heartbeat, at which a Sentinel is asked too')
  await store.put(record(2))
  await serves(daemon, 2)
  t.same(reasons(daemon), [])
  await servers[0].client.call('CLIENT', 'KILL', 'TYPE', 'pubsub')
  await logsReason(daemon, /^127\.0\.0\.1:\d+: .*ECONNREFUSED.*; .*; /)
  await watched.restartSentinels()
  await connected(daemon)
  await store.put(record(3))
  await serves(daemon, 3)
})

t.test('an error names the cause if a Sentinel requires a password or does not know the primary', async (t) => {
  const { url, files } = await startSetup(t)
  await t.rejects(aStore(t, url), /cannot use the store: .*NOAUTH/)
  await t.rejects(
    aStore(t, url.replace('/main', '/other'), files),
    /cannot use the store: .*knows no primary with the name other/,
  )
})

t.test('neither a daemon nor a publisher accepts a replica that a Sentinel calls the primary', async (t) => {
  const primary = await startRedis(t)
  const replica = await startRedis(t, ['--replicaof', `127.0.0.1 ${primary.port}`])
  await until(
    async () => (await replica.client.info('replication')).includes('master_link_status:up'),
    'the replica to be synchronised',
  )
  await (await aStore(t, primary.url)).put(record(1))
  const url = await startMistakenSentinel(t, replica.port)
  const files = { sentinelPasswordFile: `${testDirectory(t, { password: 'sentinels\n' })}/password` }
  await t.rejects(aStore(t, url, files), /cannot use the store: this server is not the primary/)
  const daemon = await aDaemon(t, url, files)
  await logsReason(daemon, /this server is not the primary/)
  t.equal((await daemon.get('/latest/meta-data/hostname')).status, 503, 'nothing is read from it')
})
