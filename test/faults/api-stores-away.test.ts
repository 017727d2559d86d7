/** Redis or PostgreSQL is unreachable while clients use imds-api. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { MAX_BACKOFF_MS } from '../../src/imds-api/publish/outbox-publisher.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, metric, operator, startClients, storeEqualsDatabase, watchRevisions } from '../support/load/api-load.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'

const IMAGE = { image: 'img-deb12' }
const AWAY_MS = process.env['IMDS_TEST_LONG'] === undefined ? 10_000 : 60_000
interface Server {
  readonly id: string
  readonly status: string
}

t.test('Redis', async (t) => {
  const whole = t
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  let api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const { baseUrl, env } = api
  const token = await api.token(CLIENT_OF[ONE])
  const create = async () => (await ask(baseUrl, token, 'POST', 'servers', IMAGE)).body as Server
  const statusOf = async (id: string) => ((await ask(baseUrl, token, 'GET', `servers/${id}`)).body as Server).status
  const becomesActive = (id: string) => until(async () => (await statusOf(id)) === 'active', `${id} to be active`)
  const database = { url: env['IMDS_API_DATABASE']! }

  t.test('away under load: every request is answered, and every change arrives afterwards', async (t) => {
    const servers = [await create(), await create()].map(({ id }) => id)
    for (const id of servers) await becomesActive(id)
    const revisions = watchRevisions(t, store)
    const clients = startClients(t, [baseUrl], token, servers)
    await redis.client.save()
    await redis.kill()
    await until(() => api.log.some(({ code }) => code === 'servers-not-published'), 'the loss to be reported')
    const late = await create()
    t.equal(await statusOf(late.id), 'creating')
    for (const endMs = performance.now() + AWAY_MS; performance.now() < endMs;) {
      await sleep(1_000)
      const [status, state] = [(await ask(baseUrl, token, 'GET', 'servers')).status, await operator(api, '/readyz')]
      if (status !== 200 || !isAway(state)) throw new Error(`${status}, ${JSON.stringify(state)}`)
    }
    t.equal(await statusOf(late.id), 'creating')
    t.ok(
      (await metric(api, 'imds_api_outbox_age_seconds')) >= AWAY_MS / 1000 - 5,
      'the oldest change has waited for the whole time',
    )
    t.ok((await metric(api, 'imds_api_outbox_servers')) >= 3)
    t.ok((await metric(api, 'imds_api_publishes_total{result="failed"}')) > 0)
    t.equal(await metric(api, 'imds_condition{code="servers-not-published",severity="failure"}'), 1)
    await redis.restart()
    // The longest pause of the back-off, and time for this machine.
    await until(async () => (await statusOf(late.id)) === 'active', 'publishing to work again', MAX_BACKOFF_MS + 10_000)
    const acknowledged = await clients.stop()
    t.strictSame([...clients.statuses.keys()], [200])
    await storeEqualsDatabase(t, database, store, acknowledged)
    t.strictSame(await revisions.stop(), [])
    await until(
      async () => ((await operator(api, '/readyz')) as { publishing: string }).publishing === 'working',
      'the end to be reported',
    )
    t.equal(await metric(api, 'imds_api_outbox_servers'), 0)
  })

  t.test('unreachable at the start of imds-api: requests are served, and Redis gets their changes later', async (t) => {
    t.equal(await api.stop(), 0)
    await redis.client.save()
    await redis.kill()
    api = await startProcess(whole, env)
    const { id } = await create()
    t.equal(await statusOf(id), 'creating')
    await redis.restart()
    await becomesActive(id)
  })

  for (const [what, breakIt] of [
    ['killed', () => redis.kill()],
    ['paused', () => redis.process().kill('SIGSTOP')],
  ] as const) {
    t.test(`imds-api stops while Redis is ${what} and a client never ends its request`, async (t) => {
      const { port } = new URL(baseUrl)
      const socket = connect(Number(port), '127.0.0.1', () => {
        socket.write('POST /token HTTP/1.1\r\nContent-Length: 100\r\n')
      })
      socket.on('error', () => undefined)
      t.teardown(() => socket.destroy())
      await breakIt()
      const { id } = await create()
      await sleep(500) // its publish waits for Redis
      const stoppingMs = performance.now()
      t.equal(await api.stop(), 0)
      const tookMs = performance.now() - stoppingMs
      t.ok(tookMs < 5_000, `it waits for no answer of Redis: ${tookMs.toFixed()} ms`) // a publish waits for 10 s
      if (what === 'killed') await redis.restart()
      else redis.process().kill('SIGCONT')
      api = await startProcess(whole, env)
      await becomesActive(id)
    })
  }
})

t.test('PostgreSQL', { skip: without('postgres') }, async (t) => {
  const [postgres, redis] = [await startPostgres(t), await startRedis(t)]
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const first = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url, IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const second = await startProcess(t, { ...first.env, IMDS_API_LISTEN: '127.0.0.1:0' })
  const baseUrls = [first.baseUrl, second.baseUrl]
  const token = await first.token(CLIENT_OF[ONE])
  const servers = await Promise.all(
    Array.from({ length: 6 }, async () => (await ask(first.baseUrl, token, 'POST', 'servers', IMAGE)).body as Server),
  )
  const ids = servers.map(({ id }) => id)

  t.test('shut down: each process says so once, with the remedy, and blames nothing else', async (t) => {
    for (const outage of [1, 2]) {
      await postgres.shutDown()
      const lines = (api: typeof first, ...codes: string[]) =>
        api.log.filter(({ code }) => codes.includes(String(code)))
      for (const api of [first, second]) {
        await until(() => lines(api, 'database-unreachable').length === 2 * outage - 1, 'its begin in the log')
        for (let i = 0; i < 3; i++) await ask(api.baseUrl, token, 'GET', 'servers')
        t.equal(((await operator(api, '/readyz')) as { ready: boolean }).ready, false)
      }
      await sleep(2_000) // several rounds of everything that works without a request
      for (const api of [first, second]) {
        t.match(
          lines(api, 'database-unreachable').filter(({ level }) => level === 'warn'),
          Array(outage).fill({ remedy: /^start PostgreSQL/ }),
        )
        t.ok(lines(api, 'database-connection-lost').length <= outage)
        t.same(lines(api, 'servers-not-published', 'invitations-not-read', 'rows-not-deleted'), [])
      }
      await postgres.restart()
      for (const api of [first, second])
        await until(
          () => api.log.filter(({ code }) => code === 'database-unreachable').length === 2 * outage,
          'its end in the log',
        )
    }
  })

  t.test('killed or restarted under load: requests get 503 meanwhile, and imds-api continues', async (t) => {
    const revisions = watchRevisions(t, store)
    const clients = startClients(t, baseUrls, token, ids)
    const acknowledgedOne = async () => {
      const before = clients.statuses.get(200) ?? 0
      await until(() => (clients.statuses.get(200) ?? 0) > before + 20, 'changes to be acknowledged')
    }
    for (let i = 0; i < 3; i++) {
      await acknowledgedOne()
      await (i === 0 ? postgres.kill() : postgres.shutDown())
      await sleep(1_100) // longer than access tokens are remembered
      t.match(await ask(first.baseUrl, token, 'GET', 'servers'), {
        status: 503,
        body: { error_name: 'service_unavailable', errors: ['the database is unreachable: try again'] },
      })
      t.match(await operator(first, '/readyz'), { ready: false, database: /ECONNREFUSED/ })
      await postgres.restart()
    }
    await acknowledgedOne()
    const acknowledged = await clients.stop()
    t.strictSame([...clients.statuses.keys()].sort(), [200, 503])
    await storeEqualsDatabase(t, { url: postgres.url }, store, acknowledged)
    t.strictSame(await revisions.stop(), [])
    for (const {
      process: { exitCode },
      log,
    } of [first, second]) {
      t.equal(exitCode, null)
      t.strictSame(
        log.filter(({ level }) => level === 'error' || level === 'fatal'),
        [],
      )
    }
  })
})

function isAway(state: unknown): boolean {
  const { ready, publishing } = state as { readonly ready: boolean; readonly publishing: string }
  return ready && publishing.startsWith('cannot use the store')
}
