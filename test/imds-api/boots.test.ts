/**
 * Servers that are active only when their guests have booted (`wait_for`), with a real Redis and PostgreSQL. The reports
 * are written to Redis as a daemon writes them; test/imds-api/guest.test.ts has a guest and a daemon.
 */
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { buildBootWatch } from '../../src/imds-api/publish/boot-watch.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { anApi, openDatabaseOf, startImdsApi, startProcess, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { without } from '../support/packages.ts'
import { makeDatabase } from '../support/programs/shared-postgres.ts'

interface Server {
  readonly id: string
  readonly status: string
  readonly cloud_ips: readonly { readonly id: string; readonly status: string }[]
}

const KEYS = keysOf('gb1')
const PLAIN = { image: 'img-deb12', zone: 'gb1-b' } // hv-3 is the only hypervisor there
const BOOTING = { ...PLAIN, wait_for: 'boot', metadata_options: { reports: 'enabled' } }

/** Starts imds-api with a Redis, and asks it. `env` adds to its environment. */
async function aRegion(t: Test, env: Readonly<Record<string, string>> = {}) {
  const redis = await startRedis(t)
  const store = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }
  const first = await startImdsApi(t, { ...store, IMDS_API_LOG_LEVEL: 'debug', ...env })
  let api = first
  const send = async (...request: Parameters<TestImdsApi['call']>) => {
    const { status, body } = await api.call(...request)
    return { status, body: body as Server }
  }
  const show = async ({ id }: Server) => (await send('GET', `servers/${id}`)).body
  return {
    redis,
    first,
    send,
    show,
    create: async (body: object) => (await send('POST', 'servers', body)).body,
    becomes: (server: Server, status: string) =>
      until(async () => (await show(server)).status === status, `${server.id} to be ${status}`),
    published: ({ id }: Server) =>
      until(async () => (await redis.client.hexists(KEYS.instances, id)) === 1, `the record of ${id}`),
    askNow: (other: TestImdsApi) => {
      api = other
    },
  }
}

async function report(redis: TestRedis, { id }: Pick<Server, 'id'>, text: string): Promise<void> {
  const received = { revision: 1, receivedAt: new Date().toISOString() }
  const reports = { revision: 1, reports: { boot: { text, ...received } } }
  await redis.client.set(KEYS.reports('hv-3', id), JSON.stringify(reports))
}

t.test('a server with wait_for is active once its guest has booted', { skip: without('postgres') }, async (t) => {
  const url = (await makeDatabase(t, 'tables')) ?? (await startPostgres(t)).url // for two processes
  const { redis, first, send, show, create, becomes, published, askNow } = await aRegion(t, { IMDS_API_DATABASE: url })
  const booting = await create({ ...BOOTING, cloud_ip: true })
  t.match(booting, { status: 'creating', wait_for: 'boot' })
  const plain = await create(PLAIN)
  t.notOk('wait_for' in plain, 'only the servers that wait have the field')
  await becomes(plain, 'active')
  const [booted, faulty, deleted] = [await create(BOOTING), await create(BOOTING), await create(BOOTING)]
  for (const server of [booting, booted, faulty, deleted]) await published(server)
  t.equal((await send('POST', `servers/${deleted.id}/stop`)).status, 409, 'it is not active')
  t.equal((await send('DELETE', `servers/${deleted.id}`)).status, 202)
  await becomes(deleted, 'deleted')
  await report(redis, booting, 'running')
  await report(redis, faulty, 'error')
  await report(redis, booted, 'done')
  await becomes(booted, 'active')
  await becomes(faulty, 'failed')
  t.match(await show(booting), { status: 'creating', cloud_ips: [{ status: 'mapped' }] }, 'it goes on waiting')

  const env = { ...first.env, IMDS_API_BOOT_SECONDS: '1' }
  await first.stop()
  const [second, third] = [
    await startProcess(t, env),
    await startProcess(t, { ...env, IMDS_API_LISTEN: '127.0.0.1:0' }),
  ]
  askNow(second)
  const late = await create({ ...BOOTING, cloud_ip: true })
  await becomes(late, 'failed')
  t.match(await send('GET', `cloud_ips/${late.cloud_ips[0]!.id}`), { body: { status: 'unmapped' } }, 'free again')
  t.equal((await show(booting)).status, 'creating', 'its time limit is that of its first publish')
  for (const server of [late, deleted, booting]) await report(redis, server, 'done')
  await becomes(booting, 'active')
  t.same([(await show(late)).status, (await show(deleted)).status], ['failed', 'deleted'], 'too late')
  t.same(
    [second, third].flatMap(({ log }) => log.filter(({ level }) => level === 'error')),
    [],
  )
})

t.test('no server fails while its reports cannot be read, and all of many are read', async (t) => {
  const { redis, first, send, show, create, becomes } = await aRegion(t)
  t.equal((await send('POST', 'servers', { ...BOOTING, metadata_options: {} })).status, 422, 'it may not report')
  const server = await create(BOOTING)
  const { pool, close } = await openDatabaseOf(first.env)
  t.teardown(close)
  const waits = async () =>
    (await pool.query('select from servers where id = $1 and boot_deadline is not null', [server.id])).rowCount === 1
  await until(waits, 'the time limit')
  const ids = Array.from({ length: 130 }, (_, i) => `srv-z${String(i).padStart(4, '0')}`)
  const columns =
    'account_id, name, status, image_id, server_type_id, zone_id, hypervisor, compatibility_mode, disk_encrypted, ' +
    'architecture, wait_for, boot_deadline'
  await pool.query(
    `insert into servers (id, ${columns}) select copy, ${columns} from servers, unnest($1::text[]) as copy where id = $2`,
    [ids, server.id],
  )
  const entry = (await redis.client.hget(KEYS.instances, server.id))!
  for (const id of ids) await redis.client.hset(KEYS.instances, id, entry)
  for (const id of ids.slice(1)) await report(redis, { id }, 'done')
  await becomes({ ...server, id: ids.at(-1)! }, 'active')
  const { rows } = await pool.query(`select id from servers where status = 'creating' order by id`)
  t.same(
    rows.map(({ id }: { id: string }) => id),
    [server.id, ids[0]],
  )

  await redis.kill()
  await pool.query(`update servers set boot_deadline = now() - interval '1 hour' where id = $1`, [server.id])
  const unread = () => first.log.filter(({ msg }) => msg.startsWith('the servers that wait for their guests')).length
  const before = unread()
  await until(() => unread() > before + 1, 'a check without Redis')
  t.equal((await show(server)).status, 'creating', 'its guest may have reported')
  await redis.restart()
  await becomes(server, 'failed')
})

t.test('a clock that is set back makes no server wait longer', async (t) => {
  const { call, database } = await anApi(t)
  const { id } = (await call('POST', '/1.0/servers', { image: 'img-deb12' })).body as Server
  const setDeadline = (deadline: string) =>
    database.pool.query(`update servers set boot_deadline = ${deadline} where id = $1`, [id])
  await setDeadline("now() + interval '3 s'")
  let checks = 0
  const reportsOf = () => {
    checks++
    return Promise.resolve(new Map())
  }
  const watch = buildBootWatch({
    ...database,
    openStore: () => Promise.resolve({ reportsOf }),
    log: pino({ enabled: false }),
  })
  watch.start()
  t.teardown(() => watch.stop())
  await until(() => checks === 1, 'a check to see it')
  await setDeadline("boot_deadline + interval '1 day'")
  const statusOf = async () => ((await call('GET', `/1.0/servers/${id}`)).body as Server).status
  await until(async () => (await statusOf()) === 'failed', 'the server to fail')
})
