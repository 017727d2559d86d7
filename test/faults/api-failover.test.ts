/** Two PostgreSQL servers behind one address, as with HAProxy: the primary is lost while clients use imds-api. */
import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import pg from 'pg'
import t, { type Test } from 'tap'
import { openDatabase, type Database } from '../../src/imds-api/database/open.ts'
import { OUTBOX_CHANNEL } from '../../src/imds-api/database/outbox.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, startClients, storeEqualsDatabase, watchRevisions, type Clients } from '../support/load/api-load.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres, startStandby, type TestPostgres } from '../support/programs/postgres.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'

const IMAGE = { image: 'img-deb12' }
interface Server {
  readonly id: string
  readonly status: string
}

t.test('PostgreSQL with a standby', { skip: without('postgres') }, async (t) => {
  const first = await startPostgres(t)
  const second = await startStandby(t, first)
  for (const setting of ["synchronous_standby_names = '*'", 'synchronous_commit = remote_apply'])
    await query(first, `alter system set ${setting}`)
  await query(first, 'select pg_reload_conf()')
  const proxy = await startProxy(t, first.port)
  const url = `postgres://imds@127.0.0.1:${proxy.port}/postgres`

  const api = await startImdsApi(t, { IMDS_API_DATABASE: url })
  const store = await openTestStore(t, { url: api.env['IMDS_STORE']! })
  const token = await api.token(CLIENT_OF[ONE])
  const create = async () => (await ask(api.baseUrl, token, 'POST', 'servers', IMAGE)).body as Server
  const becomesActive = (id: string) =>
    until(
      async () => ((await ask(api.baseUrl, token, 'GET', `servers/${id}`)).body as Server).status === 'active',
      `${id} to be active`,
      20_000,
    )
  const ids = [await create(), await create(), await create()].map(({ id }) => id)
  for (const id of ids) await becomesActive(id)
  const revisions = watchRevisions(t, store)
  const clients = startClients(t, [api.baseUrl], token, ids)

  t.test('the primary killed under load: changes get 503, and succeed once the standby is promoted', async (t) => {
    await acknowledgeMore(clients)
    await first.kill()
    await until(() => clients.statuses.has(503), 'changes to be refused')
    const body = JSON.stringify({ user_data: '' })
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
    const refused = await fetch(`${api.baseUrl}/1.0/servers/${ids[0]!}`, { method: 'PUT', headers, body })
    t.match(
      { status: refused.status, seconds: refused.headers.get('retry-after'), body: await refused.json() },
      { status: 503, seconds: '1', body: { error_name: 'service_unavailable' } },
    )
    t.match(await (await fetch(`${api.operatorUrl}/readyz`)).json(), { ready: false, database: /./ })
    const promotingMs = performance.now()
    await second.promote()
    proxy.follow(second.port)
    const promotedMs = performance.now()
    await acknowledgeMore(clients, 1)
    const afterMs = (performance.now() - promotedMs).toFixed()
    t.comment(`promoted in ${(promotedMs - promotingMs).toFixed()} ms, and ${afterMs} ms later a change succeeded`)
    await acknowledgeMore(clients)
  })

  t.test('afterwards changes are published, and notifications arrive', async (t) => {
    await becomesActive((await create()).id)
    await until(async () => (await listeners(second)) === 1, 'the outbox to be listened to')
    t.strictSame([...clients.statuses.keys()].sort(), [200, 503])
  })

  t.test('no acknowledged change is lost, and no revision goes back', async (t) => {
    const acknowledged = await clients.stop()
    await storeEqualsDatabase(t, { url: second.url }, store, acknowledged)
    t.strictSame(await revisions.stop(), [])
    t.strictSame(
      api.log.filter(({ level }) => level === 'error' || level === 'fatal'),
      [],
    )
  })

  t.test('imds-api stops', async (t) => t.equal(await api.stop(), 0))

  t.test('a connection to a server that has become read-only is not used again', async (t) => {
    // like a connection to a proxy whose server was demoted, it stays read-only
    await query(second, 'alter role imds set default_transaction_read_only = on')
    const { db } = await open(t, second.url)
    const change = () => db.deleteFrom('outbox').where('id', '=', 0).execute()
    await t.rejects(change(), { code: '25006' })
    await query(second, 'begin read write; alter role imds set default_transaction_read_only = off; commit')
    await t.resolves(change())
  })
})

/** Opens the database as imds-api does. */
async function open(t: Test, url: string): Promise<Database> {
  const database = await openDatabase({ url }, false, (error) => {
    t.comment(error.message)
  })
  t.teardown(() => database.close())
  return database
}

/** Waits until `more` changes were acknowledged. */
async function acknowledgeMore({ statuses }: Clients, more = 20): Promise<void> {
  const before = statuses.get(200) ?? 0
  await until(() => (statuses.get(200) ?? 0) >= before + more, 'changes to be acknowledged', 30_000)
}

async function query({ url }: TestPostgres, text: string): Promise<unknown[]> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return (await client.query<object>(text)).rows
  } finally {
    await client.end()
  }
}

async function listeners(server: TestPostgres): Promise<number> {
  return (await query(server, `select from pg_stat_activity where query = 'listen ${OUTBOX_CHANNEL}'`)).length
}

/** An address that leads to the server at a port, until it follows another one. */
async function startProxy(t: Test, first: number): Promise<{ readonly port: number; follow(port: number): void }> {
  let target = first
  const server = createServer((near) => {
    const far = connect(target, '127.0.0.1')
    near.pipe(far).pipe(near)
    near.on('error', () => far.destroy()).on('close', () => far.destroy())
    far.on('error', () => near.destroy()).on('close', () => near.destroy())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return {
    port: (server.address() as AddressInfo).port,
    follow: (port) => {
      target = port
    },
  }
}
