/** Redis or PostgreSQL is unreachable while clients use imds-api. */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask } from '../support/load/api-load.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'

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
