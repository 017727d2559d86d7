/** A PostgreSQL server of the operator: its settings and encoding, and pgBouncer in front of it. */
import pg from 'pg'
import t from 'tap'
import { aRegion, CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask } from '../support/load/api-load.ts'
import { startImdsApi, writeRegion } from '../support/programs/api.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { startPgBouncer } from '../support/programs/pgbouncer.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { run } from '../support/programs/processes.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

t.setTimeout(300_000) // as under `npm test`

t.test('a PostgreSQL server of the operator', { skip: without('postgres', 'pgbouncer') }, async (t) => {
  const postgres = await startPostgres(t)
  const client = new pg.Client(postgres.url)
  await client.connect()
  t.teardown(() => client.end())
  const directory = shortDirectory(t, 0o755)
  const imdsApi = async (args: readonly string[], url: string) => {
    const env = { IMDS_API_DATABASE: url, IMDS_STORE: `file:${directory}` }
    const { status, stdout, stderr } = await run([process.execPath, IMDS_API, ...args], {
      env: { ...programEnvironment(), ...env },
    })
    return { status, output: stdout.toString() + stderr }
  }
  const session = await startPgBouncer(t, postgres, 'session')

  t.test('other settings of the database change nothing, directly and behind pgBouncer', async (t) => {
    for (const [name, value] of Object.entries({
      DateStyle: 'German',
      IntervalStyle: 'sql_standard',
      TimeZone: 'Pacific/Apia',
      standard_conforming_strings: 'off',
      bytea_output: 'escape',
      array_nulls: 'off',
      extra_float_digits: '-15',
      default_transaction_isolation: 'serializable',
    }))
      await client.query(`alter database postgres set ${name} to ${client.escapeLiteral(value)}`)
    const api = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url })
    const behind = await startImdsApi(t, { IMDS_API_DATABASE: session })
    for (const { baseUrl, token } of [api, behind]) {
      const bearer = await token(CLIENT_OF[ONE])
      const body = { image: 'img-deb12', tags: { path: 'C:\\new' } }
      const { status, body: server } = await ask(baseUrl, bearer, 'POST', 'servers', body)
      t.match({ status, server }, { status: 202, server: { tags: body.tags } })
      const { created_at } = server as { readonly created_at: string }
      t.ok(Math.abs(Date.parse(created_at) - Date.now()) < 60_000)
      t.match(await ask(baseUrl, bearer, 'GET', 'servers?tag=path:C:%5Cnew'), { status: 200 })
    }
  })

  t.test('a command behind pgBouncer is the operator in the events', async (t) => {
    const { api_clients } = aRegion()
    const more = { id: 'cli-more4', account: ONE, name: 'more', secret_file: 'cli-more4.secret' }
    const file = writeRegion(directory, aRegion({ api_clients: [...api_clients, more] }))
    t.match(await imdsApi(['apply', file], session), { status: 0 })
    t.match(await imdsApi(['--check'], session), { status: 0 })
    const { rows } = await client.query("select actor from events where resource = 'cli-more4'")
    t.strictSame(rows, [{ actor: 'operator' }])
  })

  t.test('pool_mode = transaction, and an encoding that is not UTF8, are refused and named', async (t) => {
    await client.query("create database latin encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
    for (const [url, reason] of [
      [await startPgBouncer(t, postgres, 'transaction'), 'set pool_mode = session for this database'],
      [postgres.url.replace(/postgres$/, 'latin'), 'the encoding of the database is LATIN1'],
    ] as const) {
      for (const args of [[], ['--check'], ['--check', '--connect']]) {
        const { status, output } = await imdsApi(args, url)
        t.not(status, 0)
        t.match(output, reason, `imds-api ${args.join(' ')}`)
      }
    }
  })
})
