/** The host of imds-api: its disk is full, its embedded PostgreSQL is killed, and no name can be resolved. */
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
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
} from '../support/load/api-load.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { serverOf, startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { must, run, startChild } from '../support/programs/processes.ts'
import { processesWith } from '../support/programs/postgres.ts'
import { startSmtp } from '../support/programs/smtp.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'

const IMAGE = { image: 'img-deb12' }
const SERVERS_REFUSED = 'imds_api_requests_total{route="/1.0/servers/:id",method="PUT",status="503"}'
const NO_ROOM = {
  status: 503,
  retryAfter: '1',
  body: { error_name: 'service_unavailable', errors: ['the database has no room for this: try again'] },
}
const BALLAST = 'ballast'
/** Fills the disk with a directory. */
const fill = (directory: string) =>
  run(['dd', 'if=/dev/zero', `of=${join(directory, BALLAST)}`, 'bs=4k', 'oflag=append', 'conv=notrunc'])

/** Mounts a small disk, which goes away with the test. $0: its directory; $1: its size. */
const MOUNT = `mkdir -p "$0" && mount -t tmpfs -o size="$1",mode=711 tmpfs "$0" && echo up && cat > /dev/null
pid=$(head -n 1 "$0/postgres/data/postmaster.pid" 2> /dev/null) && kill -QUIT "$pid"
umount -l "$0"`
async function mountDisk(t: Test, directory: string, size: string): Promise<void> {
  const disk = await startChild(['sh', '-c', MOUNT, directory, size])
  t.teardown(() => disk.stop())
}
const MAIL_HOST = 'mail.imds.invalid'

t.test('the host of imds-api', { skip: withoutNamespaces() }, async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const prepared = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded', IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const state = prepared.env['IMDS_API_STATE_DIR']!
  await prepared.stop()
  // a small disk for the state directory and the audit lines
  await must(['mv', state, `${state}.kept`])
  await mountDisk(t, state, '200m')
  await must(['cp', '-a', `${state}.kept/.`, state])
  const smtp = await startSmtp(t)
  const audit = join(state, 'audit')
  await mountDisk(t, audit, '64k')
  const auditFile = join(audit, 'log')
  const env = {
    ...prepared.env,
    IMDS_API_AUDIT_FILE: auditFile,
    IMDS_API_SMTP: `smtp://${MAIL_HOST}:${smtp.port}`,
    IMDS_API_MAIL_FROM: 'noreply@example.com',
    IMDS_API_INVITATION_URL: 'https://cloud.example.com/invitations',
  }
  let api = await startProcess(t, env)
  const token = await api.token(CLIENT_OF[ONE])
  const call = (method: string, path: string, body?: object) => ask(api.baseUrl, token, method, path, body)
  const create = async () => ((await call('POST', 'servers', IMAGE)).body as { id: string }).id
  const isActive = async (id: string) =>
    ((await call('GET', `servers/${id}`)).body as { status: string }).status === 'active'
  const ids = [await create(), await create()]
  for (const id of ids) await untilAsked(() => isActive(id), `${id} to be active`)
  const postgres = { host: join(state, 'postgres'), user: 'imds', database: 'postgres' }
  const connect = async () => {
    const client = new pg.Client(postgres)
    client.on('error', () => undefined)
    await client.connect()
    return client
  }
  const database = serverOf(state)
  /** Changes the first server: `n`, and random white space. Checks the answer, which may be a refusal. */
  const put = async (n: number, length: number) => {
    const text = String(n) + [...randomBytes(length)].map((byte) => (byte % 2 === 0 ? ' ' : '\t')).join('')
    const user_data = Buffer.from(text).toString('base64')
    const { status, retryAfter, body } = await call('PUT', `servers/${ids[0]!}`, { user_data })
    if (status !== 200) t.match({ status, retryAfter, body }, NO_ROOM)
    return status
  }

  t.test('the disk of the audit lines is full: changes are made, their lines written once it has room', async (t) => {
    const lines = () => readFileSync(auditFile, 'utf8').split('\n').slice(0, -1)
    const before = lines().length
    await fill(audit)
    for (let n = 1; n <= 30; n++) t.equal(await put(n, 1), 200)
    t.ok(api.log.some(({ level, msg }) => level === 'error' && msg.startsWith('an audit line cannot be written')))
    rmSync(join(audit, BALLAST))
    t.equal(await put(31, 1), 200)
    const times = lines()
      .slice(before)
      .map((line) => (JSON.parse(line) as { time: string }).time)
    t.equal(times.length, 31)
    t.strictSame(times, times.toSorted())
  })

  t.test('its disk is full: changes get 503, reads are answered, and after it no change is missing', async (t) => {
    const client = await connect()
    // as in operation, where the next WAL file has its room; those of tests are sparse
    await client.query('alter system set wal_init_zero = on')
    await client.query('select pg_reload_conf()')
    await client.query('select pg_switch_wal()')
    await client.end()
    t.equal(await put(1, 1), 200)
    await fill(state)
    let [acknowledged, refused] = [1, 0]
    for (let n = 2; refused < 5 && n < 100; n++) {
      const status = await put(n, 12_000)
      if (status === 200) acknowledged = n
      else refused += 1
    }
    t.equal(refused, 5)
    t.equal((await call('GET', 'servers')).status, 200)
    t.match(await operator(api, '/readyz'), { ready: true })
    t.ok(
      api.log.some(
        ({ level, msg, reason }) =>
          level === 'warn' &&
          msg === 'the database has no disk space, memory or connections left: requests are answered 503' &&
          String(reason).includes('No space left on device'),
      ),
    )
    t.ok((await metric(api, SERVERS_REFUSED)) >= 5)

    // PostgreSQL needs its next WAL file, and stops without it. It may come back if there is room for its recovery
    const exited = once(api.process, 'exit')
    await untilAsked(async () => {
      await fill(state)
      const client = await connect().catch(() => undefined)
      // a message, since a table could not grow: without a change PostgreSQL switches to no other WAL file
      await client?.query("select pg_logical_emit_message(false, '', 'x'), pg_switch_wal()").catch(() => undefined)
      await client?.end().catch(() => undefined)
      return processesWith(join(state, 'postgres/data')).length === 0
    }, 'PostgreSQL to end')
    await exited
    t.match(api.log.at(-1), { level: 'fatal', msg: 'imds-api cannot continue', reason: /PostgreSQL has ended/ })
    const start = await run([process.execPath, IMDS_API], { env: { ...programEnvironment(), ...env } })
    t.equal(start.status, 1)
    t.match(start.stdout.toString(), /"level":"fatal".*PostgreSQL does not start: the disk of .* is full; /)

    rmSync(join(state, BALLAST))
    api = await startProcess(t.parent as typeof t, env)
    await storeEqualsDatabase(t, database, store, new Map([[ids[0]!, acknowledged]]))
    t.equal(await put(acknowledged + 1, 1), 200)
  })

  t.test('PostgreSQL killed (-9) under load: imds-api ends, and its next start misses no change', async (t) => {
    const clients = startClients(t, [api.baseUrl], token, ids, 20)
    await until(() => (clients.statuses.get(200) ?? 0) > 20, 'changes to be acknowledged')
    const exited = once(api.process, 'exit')
    const [postmaster] = readFileSync(join(state, 'postgres/data/postmaster.pid'), 'utf8').split('\n')
    process.kill(Number(postmaster), 'SIGKILL')
    t.strictSame(await exited, [1, null])
    t.match(api.log.at(-1), { level: 'fatal', msg: 'imds-api cannot continue', reason: /PostgreSQL has ended/ })
    // as systemd does: it ends what is left of a service before it starts the service again
    const data = join(state, 'postgres/data')
    await until(() => !existsSync(`/proc/${postmaster!}`) && processesWith(data).length === 0, 'PostgreSQL to end')
    // and the next one knows no names
    const [hosts, resolver] = [join(state, 'hosts'), join(state, 'resolv.conf')]
    writeFileSync(hosts, '127.0.0.1 localhost\n')
    writeFileSync(resolver, 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n') // where none listens
    const mounts = `mount --bind ${hosts} /etc/hosts && mount --bind ${resolver} /etc/resolv.conf && exec "$@"`
    api = await startProcess(t.parent as typeof t, env, 'inherit', ['unshare', '--mount', 'sh', '-c', mounts, 'sh'])
    const before = clients.statuses.get(200)!
    await until(() => clients.statuses.get(200)! > before, 'changes to be acknowledged again')
    const acknowledged = await clients.stop()
    t.strictSame(
      [...clients.statuses.keys()].filter((status) => ![0, 200, 503].includes(status)),
      [],
    )
    await storeEqualsDatabase(t, database, store, acknowledged)
  })

  t.test('the name of the mail server cannot be resolved: requests are answered, and mail is sent later', async (t) => {
    t.match(await call('POST', 'collaborations', { email: 'mary@example.com', role: 'admin' }), { status: 201 })
    const warning = () => api.log.find(({ msg }) => msg === 'the invitation cannot be sent. Retrying')
    await until(() => warning() !== undefined, 'the warning', 30_000)
    t.match(warning(), { level: 'warn', reason: new RegExp(`(EAI_AGAIN|ENOTFOUND|ECONNREFUSED).*${MAIL_HOST}`) })
    t.ok((await metric(api, 'imds_api_invitations_total{result="failed"}')) > 0)
    t.match(await operator(api, '/readyz'), { ready: true, publishing: 'working' })
    t.match(await call('PUT', `servers/${ids[0]!}`, { user_data: 'b25l' }), { status: 200 })
    writeFileSync(join(state, 'hosts'), `127.0.0.1 localhost ${MAIL_HOST}\n`)
    await until(() => smtp.delivered.length === 1, 'the mail', 60_000)
    await verifyIsClean(t, api)
    t.equal(await api.stop(), 0)
  })
})
