/** Redis takes no changes, or loses some, while clients of imds-api change servers. */
import { once } from 'node:events'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import {
  ask,
  metric,
  operator,
  startClients,
  storeEqualsDatabase,
  untilAsked,
  verifyIsClean,
  watchRevisions,
} from '../support/load/api-load.ts'
import { databaseOf, startImdsApi, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'
import { startWatched } from '../support/redis/sentinel.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const IMAGE = { image: 'img-deb12' }
const LOST = 'the store was emptied, restarted or replaced, and may have lost changes: every server is published again'
/** Between two changes of a client, so that the tests need little CPU time. */
const PAUSE_MS = 200
interface Server {
  readonly id: string
  readonly status: string
}

/** Functions for the servers of one account. */
async function aClient(api: TestImdsApi) {
  const token = await api.token(CLIENT_OF[ONE])
  const create = async () => ((await ask(api.baseUrl, token, 'POST', 'servers', IMAGE)).body as Server).id
  const statusOf = async (id: string) => ((await ask(api.baseUrl, token, 'GET', `servers/${id}`)).body as Server).status
  const becomes = (id: string, status: string) =>
    untilAsked(async () => (await statusOf(id)) === status, `${id} to be ${status}`)
  const remove = async (id: string) => {
    const { status } = await ask(api.baseUrl, token, 'DELETE', `servers/${id}`)
    if (status !== 202) throw new Error(`the deletion of ${id} was answered ${status}`)
    await becomes(id, 'deleted')
  }
  return { token, create, statusOf, becomes, remove }
}

t.test('one Redis', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const api = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded', IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const { token, create, statusOf, becomes, remove } = await aClient(api)
  const database = databaseOf(api.env)
  const servers = [await create(), await create()]
  for (const id of servers) await becomes(id, 'active')
  const start = (t: Test) => startClients(t, [api.baseUrl], token, servers, PAUSE_MS)

  for (const [what, begin, end, reason] of [
    [
      'a read-only replica',
      () => redis.client.replicaof('127.0.0.1', 1),
      () => redis.client.replicaof('NO', 'ONE'),
      'this is a replica that lost its primary',
    ],
    [
      'without enough replicas',
      () => redis.client.config('SET', 'min-replicas-to-write', '1'),
      () => redis.client.config('SET', 'min-replicas-to-write', '0'),
      'Redis has fewer replicas than its min-replicas-to-write: start its replicas (NOREPLICAS ',
    ],
    [
      'out of memory',
      () => redis.client.config('SET', 'maxmemory-policy', 'noeviction', 'maxmemory', '1mb'),
      () => redis.client.config('SET', 'maxmemory', '0'),
      'Redis is out of memory: raise its maxmemory, or delete what is not needed (OOM ',
    ],
  ] as const) {
    t.test(`${what}: changes are accepted, one line has the reason, and all is published afterwards`, async (t) => {
      const revisions = watchRevisions(t, store)
      const clients = start(t)
      const linesBefore = api.log.length
      await begin()
      const late = await create()
      const problem = async () => ((await operator(api, '/readyz')) as { publishing: string }).publishing
      await untilAsked(async () => (await problem()).startsWith(`cannot use the store: ${reason}`), 'the reason')
      t.equal(await statusOf(late), 'creating')
      t.match(await operator(api, '/readyz'), { ready: true })
      t.equal(await metric(api, 'imds_api_refused_servers'), 0, 'no server is at fault')
      t.ok((await metric(api, 'imds_api_outbox_age_seconds')) > 0)
      t.match(
        api.log.slice(linesBefore).map(({ level, msg }) => ({ level, msg })),
        [{ level: 'warn', msg: 'servers cannot be published: guests see the last published state. Retrying' }],
      )
      await end()
      await becomes(late, 'active')
      const acknowledged = await clients.stop()
      t.strictSame([...clients.statuses.keys()], [200])
      await storeEqualsDatabase(t, database, store, acknowledged)
      t.strictSame(await revisions.stop(), [])
    })
  }

  t.test('emptied while changes arrive: imds-api notices it, and publishes every server again', async (t) => {
    const quiet = await create()
    await becomes(quiet, 'active')
    const clients = start(t)
    const before = api.log.length
    await redis.client.flushall()
    await until(() => api.log.slice(before).some(({ msg }) => msg === LOST), 'the loss to be reported')
    const acknowledged = await clients.stop()
    t.strictSame([...clients.statuses.keys()], [200])
    t.match(await operator(api, '/readyz'), { ready: true, publishing: 'working' })
    await storeEqualsDatabase(t, database, store, acknowledged)
    t.equal(await redis.client.exists('imds:{gb1}'), 1, 'daemons accept the region')
  })

  t.test('restarted with an older copy of its data: what it lost is published, or removed, again', async (t) => {
    const removed = await create()
    await becomes(removed, 'active')
    await redis.client.save()
    await remove(removed)
    const added = await create()
    await becomes(added, 'active')
    await redis.kill()
    await redis.restart()
    await until(() => api.log.at(-1)?.msg === LOST || api.log.at(-2)?.msg === LOST, 'the loss to be reported', 30_000)
    await verifyIsClean(t, api)
    t.equal(await store.get(removed), undefined)
    t.ok(await store.get(added))
  })
})

t.test('failed over by Sentinel to a replica that has not got the last changes: none is lost', async (t) => {
  const watched = await startWatched(t, 'sentinels')
  const [first, second] = watched.servers
  const passwordFile = join(testDirectory(t, { password: 'sentinels\n' }), 'password')
  const api = await startImdsApi(t, {
    IMDS_API_DATABASE: 'embedded',
    IMDS_STORE: watched.url,
    IMDS_REGION: 'gb1',
    IMDS_REDIS_SENTINEL_PASSWORD_FILE: passwordFile,
  })
  const { token, create, becomes, remove } = await aClient(api)
  const servers = [await create(), await create(), await create()]
  for (const id of servers) await becomes(id, 'active')
  await until(async () => (await second.client.hlen('imds:{gb1}:instances')) === 3, 'the replica to have them')
  const clients = startClients(t, [api.baseUrl], token, servers.slice(0, 1), PAUSE_MS)
  second.process().kill('SIGSTOP')
  await remove(servers[1]!)
  const added = await create()
  await becomes(added, 'active')
  first.process().kill('SIGKILL')
  await once(first.process(), 'exit')
  second.process().kill('SIGCONT')
  await untilAsked(async () => (await watched.primary()) === second, 'the failover')
  await until(() => api.log.some(({ msg }) => msg === LOST), 'the loss to be reported', 30_000)
  const acknowledged = await clients.stop()
  t.strictSame([...clients.statuses.keys()], [200])
  await verifyIsClean(t, api)
  const store = await openTestStore(t, { url: second.url, region: 'gb1' })
  t.same(
    (await store.list()).map(({ id }) => id),
    [servers[0], servers[2], added].sort(),
  )
  t.equal(String((await store.get(servers[0]!))?.userData), String(acknowledged.get(servers[0]!)))
})
