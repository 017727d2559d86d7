/** A change with an Idempotency-Key is made once, whichever of two processes is asked or killed. */
import { once } from 'node:events'
import pg from 'pg'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { countOfLockWaits, startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { without } from '../support/packages.ts'

t.test('two processes', { skip: without('postgres') }, async (t) => {
  const postgres = await startPostgres(t)
  const first = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url })
  const second = await startProcess(t, { ...first.env, IMDS_API_LISTEN: '127.0.0.1:0' })
  const bearer = await first.token(CLIENT_OF[ONE])
  const send = async (api: typeof first, key: string) => {
    const response = await fetch(`${api.baseUrl}/1.0/server_groups`, {
      method: 'POST',
      headers: { authorization: `Bearer ${bearer}`, 'idempotency-key': key, 'content-type': 'application/json' },
      body: JSON.stringify({ name: key }),
    })
    const { id } = (await response.json()) as { id: string }
    return { status: response.status, id, replayed: response.headers.has('idempotent-replayed') }
  }
  const untilDone = async (api: typeof first, key: string) => {
    let answer = await send(api, key)
    while (answer.status === 409) answer = await send(api, key)
    return answer
  }
  const names = async () => {
    const response = await fetch(`${second.baseUrl}/1.0/server_groups`, {
      headers: { authorization: `Bearer ${bearer}` },
    })
    const groups = (await response.json()) as { name: string }[]
    return groups
      .map(({ name }) => name)
      .filter((name) => /^(?:both|killed)/.test(name))
      .sort()
  }
  const keysOf = (prefix: string) => Array.from({ length: 20 }, (_, i) => `${prefix}-${String(i + 10)}`)

  await t.test(
    'of which one has a request in flight: its repeat to the other gets 409, and then the response',
    async (t) => {
      const blocker = new pg.Client(postgres.url)
      await blocker.connect()
      t.teardown(() => blocker.end())
      await blocker.query('begin')
      await blocker.query('select from accounts where id = $1 for update', [ONE])
      const inFlight = send(first, 'slow')
      await until(async () => (await countOfLockWaits(blocker)) !== 0, 'the change to wait')
      t.equal((await send(second, 'slow')).status, 409)
      await blocker.query('commit')
      const { status, id } = await inFlight
      t.equal(status, 202)
      t.match(await untilDone(second, 'slow'), { status: 202, id, replayed: true })
    },
  )

  await t.test('that get one key at the same time make the change once, and both have its response', async (t) => {
    for (const key of keysOf('both')) {
      const answers = await Promise.all([first, second, first, second].map((api) => untilDone(api, key)))
      t.equal(new Set(answers.map(({ id }) => id)).size, 1)
      t.equal(answers.filter(({ status, replayed }) => status === 202 && !replayed).length, 1)
    }
    t.strictSame(await names(), keysOf('both'))
  })

  await t.test('of which one is killed during changes: repeats to the other make each once', async (t) => {
    const keys = keysOf('killed')
    const sent = keys.map((key) => send(first, key).catch(() => undefined))
    await Promise.race(sent)
    first.process.kill('SIGKILL')
    await once(first.process, 'exit')
    const answered = await Promise.all(sent)
    const repeated = await Promise.all(keys.map((key) => untilDone(second, key)))
    for (const [i, answer] of answered.entries())
      if (answer !== undefined) t.match(repeated[i], { id: answer.id, replayed: true })
    t.ok(answered.includes(undefined), 'some were not answered')
    t.strictSame(await names(), [...keysOf('both'), ...keys])
  })
})
