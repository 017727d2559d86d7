/** One of two imds-api on one PostgreSQL is stopped (SIGSTOP) in the middle of its work, and goes on later. */
import pg from 'pg'
import t from 'tap'
import { CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { ask, metric, operator, verifyIsClean, watchRevisions } from '../support/load/api-load.ts'
import { startImdsApi, startProcess, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { startRedis } from '../support/redis/redis.ts'
import { startSlowLink } from '../support/redis/slow-link.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'

/**
 * A statement of a server with this name sleeps: if its process is stopped meanwhile, PostgreSQL then has a transaction
 * with all its locks, which waits for the process.
 */
const SLOW = 'slow'
const SLEEP = `
  create function sleep() returns trigger language plpgsql as $$
    begin
      if exists (select from servers where id = coalesce(to_jsonb(new) ->> 'server_id', new.id::text) and name = '${SLOW}')
      then perform pg_sleep(1); end if;
      return null;
    end $$;
  create trigger sleep after update on servers for each row execute function sleep();
  create trigger sleep after insert on compute_actions for each row execute function sleep();`

t.test('one of two imds-api is stopped', { skip: without('postgres') }, async (t) => {
  const [postgres, redis] = [await startPostgres(t), await startRedis(t)]
  const link = await startSlowLink(redis.port, 0)
  t.teardown(() => link.stop())
  const client = new pg.Client(postgres.url)
  await client.connect()
  t.teardown(() => client.end())
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const stopped = await startImdsApi(t, {
    IMDS_API_DATABASE: postgres.url,
    IMDS_STORE: `redis://127.0.0.1:${link.port}`,
    IMDS_REGION: 'gb1',
  })
  const token = await stopped.token(CLIENT_OF[ONE])
  const put = (api: TestImdsApi, id: string, text: string) =>
    ask(api.baseUrl, token, 'PUT', `servers/${id}`, { user_data: Buffer.from(text).toString('base64') })
  const create = async (api: TestImdsApi) => {
    const { id } = (await ask(api.baseUrl, token, 'POST', 'servers', { image: 'img-deb12' })).body as { id: string }
    await until(async () => (await store.get(id)) !== undefined, `${id} to be published`)
    return id
  }
  const userDataOf = async (id: string) => String((await store.get(id))?.userData)
  const [first, second] = [await create(stopped), await create(stopped)]
  const revisions = watchRevisions(t, store)
  const other = await startProcess(t, { ...stopped.env, IMDS_API_LISTEN: '127.0.0.1:0', IMDS_STORE: redis.url })
  t.teardown(() => {
    for (const api of [stopped, other]) api.process.kill('SIGCONT')
  })

  t.test('in the middle of a publish: only its servers wait, and only until PostgreSQL ends its session', async (t) => {
    const holds = link.hold('old contents')
    other.process.kill('SIGSTOP') // so that the first one publishes this
    t.match(await put(stopped, first, 'old contents'), { status: 200 })
    await holds
    stopped.process.kill('SIGSTOP')
    other.process.kill('SIGCONT')
    t.match(await put(other, first, 'new contents'), { status: 200 })
    t.match(await put(other, second, 'others'), { status: 200 })
    await until(async () => (await userDataOf(second)) === 'others', 'other servers to be published')
    await until(async () => (await metric(other, 'imds_api_outbox_servers')) === 1, 'one server to wait, and no other')
    t.ok((await metric(other, 'imds_api_outbox_age_seconds')) > 0)
    t.match(await operator(other, '/readyz'), { ready: true, publishing: 'working' })
    await until(async () => (await userDataOf(first)) === 'new contents', 'its server to be published')
  })

  t.test('its publish that arrives late changes nothing', async (t) => {
    const revision = async () => ((await store.get(first))!.document as { revision: number }).revision
    const scripts = async () =>
      Number(/cmdstat_evalsha:calls=(\d+)/.exec(await redis.client.info('commandstats'))?.[1] ?? 0)
    const [revisionBefore, scriptsBefore] = [await revision(), await scripts()]
    link.release()
    await until(async () => (await scripts()) > scriptsBefore, 'the late publish')
    t.equal(await userDataOf(first), 'new contents')
    t.equal(await revision(), revisionBefore)
    stopped.process.kill('SIGCONT')
    t.match(await put(stopped, first, 'newest contents'), { status: 200 })
    await until(async () => (await userDataOf(first)) === 'newest contents', 'it to work again')
  })

  /** Stops it in the middle of a change. `hasLocks`: whether PostgreSQL still has the locks of the change. */
  const stopDuring = async (change: Promise<unknown>) => {
    const sessionIn = async (condition: string) =>
      (await client.query<{ pid: number }>(`select pid from pg_stat_activity where ${condition}`)).rows[0]?.pid
    let pid: number | undefined
    await until(async () => (pid = await sessionIn("wait_event = 'PgSleep'")) !== undefined, 'the change to sleep')
    stopped.process.kill('SIGSTOP')
    const hasLocks = async () => (await sessionIn(`pid = ${pid!} and state = 'idle in transaction'`)) !== undefined
    await until(hasLocks, 'PostgreSQL to wait for the stopped one')
    return { change, hasLocks }
  }

  t.test('in the middle of a create: creates and reads of other accounts go on', async (t) => {
    await client.query(SLEEP)
    const ofTwo = await other.token(CLIENT_OF[TWO])
    const { change, hasLocks } = await stopDuring(
      ask(stopped.baseUrl, token, 'POST', 'servers', { image: 'img-deb12', name: SLOW, cloud_ip: true }),
    )
    const request = async () => [
      (await ask(other.baseUrl, ofTwo, 'POST', 'servers', { image: 'img-deb12', cloud_ip: true })).status,
      (await ask(other.baseUrl, ofTwo, 'GET', 'servers')).status,
    ]
    t.strictSame(
      [await request(), await request()],
      [
        [202, 200],
        [202, 200],
      ],
    )
    t.ok(await hasLocks(), 'while PostgreSQL waits for the stopped one')
    await until(async () => !(await hasLocks()), 'PostgreSQL to end its session')
    stopped.process.kill('SIGCONT')
    t.match(await change, { status: 503 })
  })

  t.test('in the middle of a change: others of the account wait until then, and it gets 503', async (t) => {
    t.match(await ask(other.baseUrl, token, 'PUT', `servers/${first}`, { name: SLOW }), { status: 200 })
    const { change, hasLocks } = await stopDuring(put(stopped, first, 'from the stopped one'))
    t.match(await ask(other.baseUrl, token, 'PUT', `servers/${second}`, { name: 'other' }), { status: 200 })
    t.notOk(await hasLocks())
    stopped.process.kill('SIGCONT')
    t.match(await change, { status: 503, retryAfter: '1', body: { error_name: 'service_unavailable' } })
    t.match(await put(other, first, 'from the other'), { status: 200 })
    await until(async () => (await userDataOf(first)) === 'from the other', 'the change of the other')
  })

  t.test('no revision goes back, both go on, and verify is clean', async (t) => {
    for (const api of [stopped, other]) {
      await create(api)
      t.equal(await metric(api, 'imds_api_ready'), 1)
      t.strictSame(
        api.log.filter(({ level, msg }) => level === 'error' || level === 'fatal' || msg.startsWith('the store has')),
        [],
        'no server is reported',
      )
    }
    t.strictSame(await revisions.stop(), [])
    await verifyIsClean(t, { ...other, env: { ...other.env } })
  })
})
