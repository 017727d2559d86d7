/** Two PostgreSQL servers in streaming replication: the primary is lost while clients use imds-api, and comes back. */
import pg from 'pg'
import t, { type Test } from 'tap'
import { openDatabase, type Database } from '../../src/api/database/open.ts'
import { OUTBOX_CHANNEL } from '../../src/api/database/outbox.ts'
import { openStore } from '../../src/store/open.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, startClients, storeEqualsDatabase, watchRevisions, type Clients } from '../support/load/api-load.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startPostgres, startStandby, withoutPostgres, type TestPostgres } from '../support/programs/postgres.ts'

const IMAGE = { image: 'img-deb12' }
interface Server {
  readonly id: string
  readonly status: string
}

t.test('PostgreSQL with a standby', { skip: withoutPostgres() }, async (t) => {
  const whole = t
  const first = await startPostgres(t)
  const second = await startStandby(t, first)
  for (const setting of ["synchronous_standby_names = '*'", 'synchronous_commit = remote_apply'])
    await query(first, `alter system set ${setting}`)
  await query(first, 'select pg_reload_conf()')
  const url = `postgres://imds@127.0.0.1:${String(second.port)},127.0.0.1:${String(first.port)}/postgres`

  t.test('without a primary the reason for each server is given', async (t) => {
    await t.rejects(open(t, [second.port, 1]), {
      message:
        'the database cannot be reached: no server can be used: ' +
        `${nameOf(second)} is a standby; 127.0.0.1:1 connect ECONNREFUSED 127.0.0.1:1`,
    })
  })

  const api = await startImdsApi(t, { IMDS_API_DATABASE: url })
  const store = await openStore({ url: api.env['IMDS_STORE']! })
  t.teardown(() => store.close())
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
    t.match(await (await fetch(`${api.operatorUrl}/readyz`)).json(), {
      ready: false,
      database: new RegExp(`:${String(second.port)} is a standby; .+:${String(first.port)} connect ECONNREFUSED`),
    })
    const promotingMs = performance.now()
    await second.promote()
    const promotedMs = performance.now()
    await acknowledgeMore(clients, 1)
    const afterMs = (performance.now() - promotedMs).toFixed()
    t.comment(`promoted in ${(promotedMs - promotingMs).toFixed()} ms, and ${afterMs} ms later a change succeeded`)
    await acknowledgeMore(clients)
    t.ok(api.log.some(({ reason }) => reason === `the database has moved from ${nameOf(first)} to ${nameOf(second)}`))
  })

  t.test('afterwards changes are published, and notifications arrive', async (t) => {
    await becomesActive((await create()).id)
    await until(async () => (await listeners(second)) === 1, 'the outbox to be listened to')
    t.strictSame([...clients.statuses.keys()].sort(), [200, 503])
  })

  t.test('the former primary comes back as it was: nothing is written to it, not even while it is alone', async (t) => {
    // so that it would accept changes
    await first.restart()
    await query(first, "alter system set synchronous_standby_names = ''")
    await query(first, 'select pg_reload_conf()')
    const before = await contents(first)
    await acknowledgeMore(clients)
    await second.shutDown()
    const refused = clients.statuses.get(503) ?? 0
    await until(() => (clients.statuses.get(503) ?? 0) > refused + 20, 'changes to be refused')
    t.match(await (await fetch(`${api.operatorUrl}/readyz`)).json(), {
      ready: false,
      database: `${nameOf(first)} is a former primary: its timeline is 1, and 2 was seen`,
    })
    await second.restart()
    await acknowledgeMore(clients)
    t.strictSame(await contents(first), before)
  })

  t.test('no acknowledged change is lost, and no revision goes back', async (t) => {
    const acknowledged = await clients.stop()
    await storeEqualsDatabase(t, { kind: 'server', url: second.url, passwordFile: undefined }, store, acknowledged)
    t.strictSame(await revisions.stop(), [])
    t.strictSame(
      api.log.filter(({ level }) => level === 'error' || level === 'fatal'),
      [],
    )
  })

  t.test('imds-api stops', async (t) => {
    t.equal(await api.stop(), 0)
  })

  t.test('a start chooses the primary of the latest timeline, in whatever order they are named', async (t) => {
    for (const ports of [
      [first.port, second.port],
      [second.port, first.port],
    ])
      t.equal(await portOf((await open(t, ports)).pool), second.port)
  })

  let third: TestPostgres
  t.test('connections end when another server is promoted while theirs still accepts changes', async (t) => {
    third = await startStandby(whole, second)
    const { pool, connect } = await open(t, [second.port, third.port])
    t.equal(await portOf(pool), second.port)
    const listener = await connect()
    const inUse = await pool.connect()
    const ended = new Promise<void>((resolve) => listener.once('end', resolve))
    await third.promote()
    await ended
    await t.rejects(inUse.query('select'), /^Connection terminated|^Client has encountered/)
    inUse.release(true)
    t.equal(await portOf(pool), third.port)
  })

  t.test('a connection to a server that has become read-only is not used again', async (t) => {
    // like a connection to a proxy whose server was demoted, it stays read-only
    await query(third, 'alter role imds set default_transaction_read_only = on')
    const { db } = await open(t, [third.port])
    const change = () => db.deleteFrom('outbox').where('id', '=', 0).execute()
    await t.rejects(change(), { code: '25006' })
    await query(third, 'begin read write; alter role imds set default_transaction_read_only = off; commit')
    await t.resolves(change())
  })
})

/** Opens the database at these ports of 127.0.0.1, as imds-api does. */
async function open(t: Test, ports: readonly number[]): Promise<Database> {
  const hosts = ports.map((port) => `127.0.0.1:${String(port)}`).join()
  const url = `postgres://imds@${hosts}/postgres`
  const database = await openDatabase({ kind: 'server', url, passwordFile: undefined }, false, (error) => {
    t.comment(error.message)
  })
  t.teardown(() => database.close())
  return database
}

async function portOf(pool: Database['pool']): Promise<number> {
  return (await pool.query<{ port: number }>('select inet_server_port() as port')).rows[0]!.port
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

/** What clients of the API change. */
function contents(server: TestPostgres): Promise<unknown[]> {
  return query(server, 'select id, revision, user_data from servers order by id')
}

async function listeners(server: TestPostgres): Promise<number> {
  return (await query(server, `select from pg_stat_activity where query = 'listen ${OUTBOX_CHANNEL}'`)).length
}

function nameOf({ port }: TestPostgres): string {
  return `127.0.0.1:${String(port)}`
}
