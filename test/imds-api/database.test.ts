/** The database of imds-api: migrations, and a server by URL. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { sql } from 'kysely'
import pg from 'pg'
import t from 'tap'
import { migrate } from '../../src/imds-api/database/migrate.ts'
import { MIGRATIONS, type TableChange } from '../../src/imds-api/database/migrations.ts'
import { openDatabase, type Database } from '../../src/imds-api/database/open.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { anApi, countOfLockWaits, startProcess, writeRegion, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { run } from '../support/programs/processes.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

/** Examples of migrations of later versions: one that adds to a table, and one that takes away what 0001-first has. */
const ADDED: TableChange = {
  up: (tx) => sql`alter table servers add column more text not null default 'none'`.execute(tx).then(() => undefined),
  oldest: '0001-first',
}
const nothing = () => Promise.resolve()
const TAKEN: TableChange = { up: nothing, oldest: '9002-more' }

t.test('PostgreSQL 15 by its URL', { skip: without('postgres') }, async (t) => {
  const { url } = await startPostgres(t)
  const directory = shortDirectory(t, 0o755)
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  t.teardown(() => client.end())
  const tableCount = async () =>
    Number(
      (await client.query<{ count: string }>("select count(*) from pg_tables where schemaname = 'public'")).rows[0]!
        .count,
    )
  const forget = (name: string) =>
    client.query(
      `delete from kysely_migration where name = '${name}'; delete from compatibility where migration = '${name}'`,
    )
  const env = {
    IMDS_API_DATABASE: url,
    IMDS_STORE: `file:${directory}`,
    IMDS_API_LISTEN: '127.0.0.1:0',
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
  }

  t.test('--check compares, and changes nothing', async (t) => {
    t.match(await imdsApi(['--check'], env), {
      status: 1,
      stdout: Object.keys(MIGRATIONS)
        .map((name) => `missing: ${name} (the next start applies it)\n`)
        .join(''),
    })
    t.equal(await tableCount(), 0)
  })

  t.test('a start without a region names the command', async (t) => {
    const { status, stdout } = await imdsApi([], env)
    t.equal(status, 1)
    t.match(stdout, 'write a region file (deploy/region.example.yaml) and run imds-api apply FILE')
  })

  t.test('processes that start together do not collide', async (t) => {
    await client.query('drop schema public cascade; create schema public')
    const file = writeRegion(directory)
    const starts = await Promise.all([1, 2, 3].map(() => imdsApi(['apply', file], env)))
    for (const { status, stderr } of starts) t.match({ status, stderr }, { status: 0, stderr: '' })
    t.match(await imdsApi(['--check'], env), { status: 0, stdout: 'the tables are those of this version\n' })
  })

  t.test('tables of another user are refused with the remedy', async (t) => {
    await client.query('create role other login; grant usage, create on schema public to other')
    t.match(await imdsApi(['reconcile'], { ...env, IMDS_API_DATABASE: url.replace('imds@', 'other@') }), {
      status: 1,
      stderr: /permission denied for .*createdb --owner and pg_restore --role/,
    })
  })

  t.test('two imds-api processes serve one database, and each sees the changes of the other', async (t) => {
    const apis = [await startProcess(t, env), await startProcess(t, env)] as const
    const { id } = await createServer(apis[0])
    t.same(await serverIds(apis[1]), [id])
    const headers = { authorization: `Bearer ${await apis[0].token(CLIENT_OF[ONE])}` }
    const statusAt = async ({ baseUrl }: TestImdsApi) => (await fetch(`${baseUrl}/1.0/servers`, { headers })).status
    for (const api of apis) t.equal(await statusAt(api), 200, 'a token of one is a token of the other')
    await client.query('update api_clients set revoked_at = now() where id = $1', [CLIENT_OF[ONE]])
    for (const api of apis)
      // both remember it for 1 s
      await until(async () => (await statusAt(api)) === 401, 'a revoked client to be refused by both', 5_000)
    await client.query('update api_clients set revoked_at = null where id = $1', [CLIENT_OF[ONE]])
    for (const api of apis) t.equal(await api.stop(), 0)
  })

  t.test('migrations have no time limit, and no server waits for its guest after them', async (t) => {
    const database = await openDatabase({ url, passwordFile: undefined }, false, (error) => {
      t.comment(error.message)
    })
    const { db, pool } = database.migrations
    t.strictSame((await pool.query('show statement_timeout')).rows, [{ statement_timeout: '0' }])
    await client.query("update servers set status = 'creating', wait_for = 'boot', boot_deadline = now()")
    await MIGRATIONS['0010-no-boot-waits']!.up(db)
    t.strictSame((await client.query('select distinct status from servers')).rows, [{ status: 'active' }])
    await database.close()
  })

  t.test('a migration waits for a long transaction, and other queries do not wait behind it', async (t) => {
    const database = await openServer(url)
    await client.query('begin')
    await client.query('select from servers')
    let isMigrated = false as boolean // TypeScript does not see that it changes
    const migrating = migrate(database.db, { ...MIGRATIONS, '9002-more': ADDED }).finally(() => {
      isMigrated = true
    })
    await until(async () => (await countOfLockWaits(database.pool)) === 1, 'the migration to wait')
    await database.pool.query('select id from servers')
    t.notOk(isMigrated)
    await client.query('rollback')
    await migrating
    await database.close()
  })

  t.test('a migration gives way to a request that has one of its tables and waits for another', async (t) => {
    const database = await openServer(url)
    await client.query('begin')
    await client.query('select from accounts')
    const requested = Promise.withResolvers<unknown>()
    let tries = 0
    const up: TableChange['up'] = async (tx) => {
      await sql`alter table servers add column one text`.execute(tx)
      if (++tries === 1) {
        client.query('select from servers').then(requested.resolve, requested.reject)
        await until(async () => (await countOfLockWaits(database.pool)) === 1, 'the request to wait')
      }
      await sql`alter table accounts add column two text`.execute(tx)
    }
    const migrating = migrate(database.db, {
      ...MIGRATIONS,
      '9002-more': ADDED,
      '9003-two': { up, oldest: '0001-first' },
    })
    await t.resolves(requested.promise)
    await client.query('commit')
    await migrating
    t.ok(tries > 1)
    await client.query('alter table servers drop column one; alter table accounts drop column two')
    await forget('9003-two')
    await database.close()
  })

  t.test('an imds-api works with tables to which a later version has only added', async (t) => {
    t.match(await imdsApi(['--check'], env), {
      status: 1,
      stdout: 'unknown: 9002-more (of a later version, with which this one works)\n',
    })
    const api = await startProcess(t, env)
    await createServer(api)
    t.equal(await api.stop(), 0)
  })

  t.test('it refuses tables from which a later version has taken what it uses', async (t) => {
    const database = await openServer(url)
    const changes = { ...MIGRATIONS, '9002-more': ADDED, '9003-less': TAKEN }
    await Promise.all([migrate(database.db, changes), migrate(database.db, changes)])
    await migrate(database.db, { ...MIGRATIONS, '9002-more': ADDED }) // a program that knows 9002-more works
    await database.close()
    t.match(await imdsApi(['--check'], env), {
      status: 1,
      stdout:
        'unknown: 9002-more (of a later version, with which this one works)\nunknown: 9003-less (of a later version)\n',
    })
    const { status, stdout } = await imdsApi([], env)
    t.equal(status, 1)
    t.match(
      stdout,
      'the database is of a later version of imds-api, with which this one does not work (it has 9002-more, 9003-less): upgrade imds-api',
    )
  })

  t.test('PostgreSQL ends transactions whose process is stopped', async (t) => {
    const limits = async (shared: boolean) => {
      const database = await openDatabase({ url }, shared, (error) => {
        t.comment(error.message)
      })
      const pools = [database.pool, database.background.pool, database.migrations.pool]
      const shown = await Promise.all(
        pools.map((pool) =>
          pool.query<{ limit: string }>("select current_setting('idle_in_transaction_session_timeout') as limit"),
        ),
      )
      const { pool, close } = database
      const role = () => pool.query("alter role imds set idle_in_transaction_session_timeout = '7s'")
      return { limits: shown.map(({ rows }) => rows[0]!.limit), role, close }
    }
    const service = await limits(false)
    t.strictSame(service.limits, ['4s', '15s', '15s'])
    await service.role()
    await service.close()
    const again = await limits(false)
    t.strictSame(again.limits, ['7s', '7s', '7s'], 'unless the administrator has another limit')
    await again.close()
  })
})

t.test('a password from a file, over TLS that verifies the server', { skip: without('postgres') }, async (t) => {
  const directory = shortDirectory(t, 0o755)
  const [authority, stranger] = [await anAuthority(directory, 'db'), await anAuthority(directory, 'stranger')]
  const postgres = await startPostgres(t, { certificate: await authority.issue('postgres'), password: 'hunter2' })
  const passwordFile = join(directory, 'password')
  writeFileSync(passwordFile, 'hunter2\n')
  const verified = `${postgres.url}?sslmode=verify-full&sslrootcert=${authority.caFile}`
  const open = (url: string, file: string | undefined) =>
    openDatabase({ url, passwordFile: file }, false, (error) => t.comment(error.message))
  for (const [what, url, file, reason] of [
    ['a wrong password', verified, authority.caFile, 'password authentication failed for user "imds"'],
    ['a file that is missing', verified, `${directory}/x`, `${directory}/x cannot be read: ENOENT`],
    ['no file', verified, undefined, 'PostgreSQL requires a password, and IMDS_API_DATABASE_PASSWORD_FILE is not set'],
    [
      'no TLS',
      postgres.url,
      passwordFile,
      'no pg_hba.conf entry for host "127.0.0.1", user "imds", database "postgres", no encryption',
    ],
    [
      'another authority',
      verified.replace(authority.caFile, stranger.caFile),
      passwordFile,
      'unable to verify the first certificate',
    ],
    [
      'another name',
      verified.replace('127.0.0.1', 'localhost'),
      passwordFile,
      "Hostname/IP does not match certificate's altnames: Host: localhost. is not",
    ],
    [
      'a file of the URL that is missing',
      `${postgres.url}?sslmode=verify-full&sslrootcert=/x`,
      passwordFile,
      "the URL of the database cannot be used: ENOENT: no such file or directory, open '/x'",
    ],
  ] as const) {
    const { message } = await open(url, file).then(
      () => new Error(`${what} is accepted`),
      (error: unknown) => error as Error,
    )
    t.match(message, reason, what)
    t.notMatch(message, 'hunter2')
  }
  const database = await open(verified, passwordFile)
  t.teardown(() => database.close())
  await postgres.setPassword('another')
  writeFileSync(passwordFile, 'another\n')
  const client = await database.connect()
  t.equal((await client.query('select')).rowCount, 1, 'a new password in the file is used without a restart')
  await client.end()
})

t.test('a silent connection is closed while a query waits, and not while its transaction sends a mail', async (t) => {
  const { database } = await anApi(t)
  const client = await database.pool.connect()
  await client.query('begin')
  fallSilent(client)
  t.match(await client.query('select 1 as one'), { rows: [{ one: 1 }] }, 'a mail server or the store may take longer')
  const waiting = client.query('select pg_sleep(600)').catch((error: unknown) => (error as Error).message)
  fallSilent(client)
  t.match(await waiting, /^Connection terminated/)
  client.release(true)
})

t.test('a silent connection of a migration is kept', async (t) => {
  const { database } = await anApi(t)
  const client = await database.migrations.pool.connect()
  const waiting = client.query('select pg_sleep(0.1)')
  fallSilent(client)
  await t.resolves(waiting)
  client.release()
})

/** As Node does after the 30 s of SILENCE_TIMEOUT_MS. */
function fallSilent(client: pg.PoolClient): void {
  ;(client as pg.PoolClient & pg.Client).connection.stream.emit('timeout')
}

t.test('a database that cannot be reached is named', async (t) => {
  const directory = shortDirectory(t, 0o755)
  const { status, stdout } = await imdsApi([], {
    IMDS_API_DATABASE: 'postgres://imds@127.0.0.1:1/imds',
    IMDS_STORE: `file:${directory}`,
  })
  t.equal(status, 1)
  t.match(stdout, 'the database cannot be reached: connect ECONNREFUSED 127.0.0.1:1')
})

function imdsApi(args: readonly string[], env: Readonly<Record<string, string>>) {
  return run([process.execPath, IMDS_API, ...args], { env: { ...programEnvironment(), ...env } }).then(
    ({ status, stdout, stderr }) => ({ status, stdout: stdout.toString(), stderr }),
  )
}

async function createServer({ call }: TestImdsApi): Promise<{ readonly id: string }> {
  const { status, body } = await call('POST', 'servers', { image: 'img-deb12' })
  if (status !== 202) throw new Error(JSON.stringify(body))
  return body as { id: string }
}

async function serverIds({ call }: TestImdsApi): Promise<string[]> {
  return ((await call('GET', 'servers')).body as { id: string }[]).map(({ id }) => id)
}

function openServer(url: string): Promise<Database> {
  return openDatabase({ url }, true, (error) => {
    throw error
  })
}
