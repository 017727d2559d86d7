/** The clock of imds-api and of PostgreSQL is set back by a day, and ahead by a day, while clients use the API. */
import { globSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, metric, operator, storeEqualsDatabase, watchRevisions } from '../support/load/api-load.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

/** Debian's faketime moves the clock of the processes that load it. */
const [FAKETIME] = globSync('/usr/lib/*/faketime/libfaketimeMT.so.1')
const DAY_SECONDS = 86_400
const skip = FAKETIME === undefined ? 'faketime is not installed' : without('postgres')

interface Event {
  readonly id: string
  readonly resource: { readonly id: string }
  readonly created_at: string
}

t.test('the clock is wrong by a day', { skip }, async (t) => {
  const directory = shortDirectory(t, 0o711) // PostgreSQL runs as another user
  const clock = join(directory, 'clock')
  const setClock = (days: number) => {
    const seconds = days * DAY_SECONDS
    writeFileSync(clock, `${seconds < 0 ? '-' : '+'}${Math.abs(seconds)}\n`)
  }
  setClock(0)
  const faked = {
    LD_PRELOAD: FAKETIME!,
    FAKETIME_TIMESTAMP_FILE: clock,
    FAKETIME_NO_CACHE: '1',
    FAKETIME_DONT_FAKE_MONOTONIC: '1',
  }
  const [postgres, redis] = [await startPostgres(t, undefined, faked), await startRedis(t)]
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const api = await startImdsApi(t, {
    ...faked,
    IMDS_API_DATABASE: postgres.url,
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
  })
  const { baseUrl } = api
  const tokens = [await api.token(CLIENT_OF[ONE])]
  const statusOf = async (token: string) => (await ask(baseUrl, token, 'GET', 'servers')).status
  const create = async (token: string) => {
    const { id } = (await ask(baseUrl, token, 'POST', 'servers', { image: 'img-deb12' })).body as { id: string }
    await until(
      async () => ((await ask(baseUrl, token, 'GET', `servers/${id}`)).body as { status: string }).status === 'active',
      `${id} to be active`,
    )
    return id
  }
  const change = async (token: string, id: string, text: string) => {
    const user_data = Buffer.from(text).toString('base64')
    t.match(await ask(baseUrl, token, 'PUT', `servers/${id}`, { user_data }), { status: 200 })
    await until(async () => String((await store.get(id))?.userData) === text, 'the change to be published')
  }
  const createOnce = async (token: string) => {
    const headers = { authorization: `Bearer ${token}`, 'idempotency-key': 'of the clock' }
    const response = await fetch(`${baseUrl}/1.0/cloud_ips`, { method: 'POST', headers })
    return ((await response.json()) as { id: string }).id
  }
  const created: string[] = []
  const cloudIp = await createOnce(tokens[0]!)
  const revisions = watchRevisions(t, store)
  created.push(await create(tokens[0]!))

  t.test('set back by a day: tokens and keys are still known, and changes are published in order', async (t) => {
    setClock(-1)
    tokens.push(await api.token(CLIENT_OF[ONE]))
    for (const token of tokens) t.equal(await statusOf(token), 200)
    created.push(await create(tokens[1]!))
    await change(tokens[0]!, created[0]!, 'set back')
    t.equal(await createOnce(tokens[0]!), cloudIp, 'an Idempotency-Key is not used twice')
  })

  t.test('ahead by a day: tokens have expired, and nothing else is lost', async (t) => {
    setClock(1)
    for (const token of tokens) t.equal(await statusOf(token), 401)
    tokens.push(await api.token(CLIENT_OF[ONE]))
    created.push(await create(tokens[2]!))
    await change(tokens[2]!, created[0]!, 'ahead')
  })

  t.test('right again: tokens end at their time, and each event is there once, in order', async (t) => {
    setClock(0)
    t.strictSame(await Promise.all(tokens.map(statusOf)), [200, 401, 200])
    created.push(await create(tokens[0]!))
    await change(tokens[0]!, created[0]!, 'right')
    const events = (await ask(baseUrl, tokens[0]!, 'GET', 'events?limit=1000')).body as Event[]
    const ofServers = events.filter(({ resource }) => created.includes(resource.id)).toReversed()
    t.strictSame([...new Set(ofServers.map(({ resource }) => resource.id))], created)
    t.equal(new Set(ofServers.map(({ id }) => id)).size, ofServers.length)
    const days = ofServers.map(({ created_at: at }) => Math.round((Date.parse(at) - Date.now()) / DAY_SECONDS / 1000))
    t.strictSame([...new Set(days)], [0, -1, 1], 'PostgreSQL had these clocks')
    t.strictSame(await revisions.stop(), [])
    t.match(await operator(api, '/readyz'), { ready: true, publishing: 'working' })
    t.equal(await metric(api, 'imds_condition{code="server-refused",severity="failure"}'), 0)
    t.strictSame(
      api.log.filter(({ level }) => level === 'error' || level === 'fatal'),
      [],
    )
    await storeEqualsDatabase(t, { url: postgres.url }, store)
  })
})
