/** Redis or PostgreSQL is unreachable while clients use imds-api. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, operator } from '../support/load/api-load.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { startRedis } from '../support/redis/redis.ts'
import { without } from '../support/packages.ts'

const IMAGE = { image: 'img-deb12' }
interface Server {
  readonly id: string
  readonly status: string
}

t.test('Redis', async (t) => {
  const whole = t
  const redis = await startRedis(t)
  let api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const { baseUrl, env } = api
  const token = await api.token(CLIENT_OF[ONE])
  const create = async () => (await ask(baseUrl, token, 'POST', 'servers', IMAGE)).body as Server
  const statusOf = async (id: string) => ((await ask(baseUrl, token, 'GET', `servers/${id}`)).body as Server).status
  const becomesActive = (id: string) => until(async () => (await statusOf(id)) === 'active', `${id} to be active`)

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
  const first = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url, IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const second = await startProcess(t, { ...first.env, IMDS_API_LISTEN: '127.0.0.1:0' })
  const token = await first.token(CLIENT_OF[ONE])

  t.test('shut down: each process says so once, with the remedy, and blames nothing else', async (t) => {
    for (const outage of [1, 2]) {
      await postgres.shutDown()
      const lines = (api: typeof first, ...codes: string[]) =>
        api.log.filter(({ code }) => codes.includes(String(code)))
      for (const api of [first, second]) {
        await until(() => lines(api, 'database-unreachable').length === 2 * outage - 1, 'its begin in the log')
        for (let i = 0; i < 3; i++)
          t.match(await ask(api.baseUrl, token, 'GET', 'servers'), { status: 503, retryAfter: '1' })
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
})
