/** `imds-api backup` and `imds-api restore`: a region on a new machine, refusals, full disks, and memory. */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { sql, type Kysely } from 'kysely'
import t from 'tap'
import { appliedMigrations, MIGRATIONS } from '../../src/api/database/migrate.ts'
import { openDatabase } from '../../src/api/database/open.ts'
import { restoreLines } from '../../src/api/database/restore.ts'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { openState, startImdsApi, startProcess, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { startPostgres, withoutPostgres } from '../support/programs/postgres.ts'
import { run } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'

const NOTHING_MORE = () => Promise.resolve([])

t.setTimeout(300_000) // as under `tap run`

interface Server {
  readonly id: string
  readonly status: string
  readonly interfaces: readonly { readonly id: string; readonly ipv4_address: string }[]
}

const source = await startImdsApi(t)
const directory = dirname(source.env['IMDS_API_STATE_DIR']!)
const store = join(directory, 'store')
/** The empty state directory of another machine. */
const other = { ...source.env, IMDS_API_STATE_DIR: join(directory, 'other') }
const file = join(directory, 'region.backup')

async function shell(script: string, env: Readonly<Record<string, string>>) {
  const commands = `cd ${directory}; imds-api() { ${process.execPath} ${IMDS_API} "$@"; }; ${script}`
  const { status, stdout, stderr } = await run(['bash', '--norc', '-c', commands], {
    env: { ...programEnvironment(), ...env },
  })
  return { status, stdout: stdout.toString(), stderr }
}

async function call(api: TestImdsApi, method: string, path: string, body?: object): Promise<unknown> {
  const headers = {
    authorization: `Bearer ${await api.token(CLIENT_OF[ONE])}`,
    ...(body !== undefined && { 'content-type': 'application/json' }),
  }
  const response = await fetch(`${api.baseUrl}/1.0${path}`, {
    method,
    headers,
    ...(body !== undefined && { body: JSON.stringify(body) }),
  })
  if (!response.ok) throw new Error(`${path}: ${await response.text()}`)
  return response.json()
}

async function create(api: TestImdsApi, body: object = {}): Promise<Server> {
  const { id } = (await call(api, 'POST', '/servers', { image: 'img-deb12', ...body })) as Server
  await until(
    async () => ((await call(api, 'GET', `/servers/${id}`)) as Server).status === 'active',
    `${id} to be active`,
  )
  return (await call(api, 'GET', `/servers/${id}`)) as Server
}

/** What a client sees of its account. */
const allOf = async (api: TestImdsApi) =>
  Promise.all(
    [
      '/account',
      '/servers',
      '/cloud_ips',
      '/server_groups',
      '/images',
      '/config_maps',
      '/config_maps/cfg-odd01',
      '/collaborations',
      '/api_clients',
    ].map((path) => call(api, 'GET', path)),
  )

const openSource = () => openState(source.env['IMDS_API_STATE_DIR']!)

t.test('a region is restored on another machine', async (t) => {
  const first = await create(source, {
    name: 'wéb "1"',
    user_data: 'IyEvYmluL3No',
    cloud_ip: true,
    tags: { Name: 'a\nb\\', é: '' },
    metadata_options: { http_tokens: 'required' },
  })
  await call(source, 'POST', '/server_groups', { name: 'front', servers: [{ server: first.id }] })
  await call(source, 'POST', '/config_maps', { name: 'long', data: { text: 'x'.repeat(100_000) } })
  const database = await openSource()
  await database.pool.query(
    "insert into config_maps (id, account_id, name, data, bytes) values ('cfg-odd01', $1, $2, $3, 0)",
    [ONE, 'odd\t\u2028', '{"b": 1.50,\n  "a": "\\ud83d\\u0007", "b": [null]}'],
  )
  await database.close()
  const before = await allOf(source)

  await t.test('backup writes a private file, beside a running imds-api', async (t) => {
    t.strictSame(await shell(executed('docs/operations.md', 'backup'), source.env), {
      status: 0,
      stdout: '',
      stderr: '',
    })
    t.equal(statSync(file).mode & 0o777, 0o600)
    t.notOk(readdirSync(directory).some((name) => name.endsWith('.new')))
  })

  const later = await create(source) // after the backup
  const recordOf = (id: string) => readFileSync(join(store, `${id}.json`), 'utf8')
  const record = recordOf(later.id)
  t.equal(await source.stop(), 0)

  await t.test('what is no whole backup of this version is refused, and the database stays empty', async (t) => {
    const broken = join(directory, 'broken')
    const text = readFileSync(file, 'utf8')
    const lines = text.split('\n')
    const [header] = lines
    const refuse = async (content: string, message: RegExp) => {
      writeFileSync(broken, content)
      t.match(await shell('imds-api restore broken', other), { status: 65, stdout: '', stderr: message })
    }
    await refuse(header!, /^imds-api: broken is not a backup of imds-api\n$/)
    t.match(await shell('imds-api restore region.backup', { ...other, IMDS_REGION: 'gb9' }), {
      status: 78,
      stderr: 'imds-api: IMDS_REGION is gb9, and region.backup is of the region gb1: correct IMDS_REGION\n',
    })
    t.match(await shell('imds-api backup broken', other), {
      status: 1,
      stderr: /^imds-api: there is no embedded database yet/,
    })
    t.notOk(existsSync(other.IMDS_API_STATE_DIR), 'these do not even make a database')
    await refuse(
      text.slice(0, text.length / 2),
      /^imds-api: broken is not whole: its end is missing. Copy it again, or take an older one\n$/,
    )

    const database = await openState(other.IMDS_API_STATE_DIR)
    const reasonFor = async (content: string) => {
      const [first, ...rest] = content.split('\n')
      return restoreLines(database.db, first!, Readable.from(rest.slice(0, -1)), NOTHING_MORE).then(
        () => 'it is restored',
        (error: unknown) => (error as Error).message,
      )
    }
    for (const content of ['', 'text\n', '{}\n', '[]\n', 'null\n'])
      t.equal(await reasonFor(content), 'is not a backup of imds-api')
    t.match(
      await reasonFor(text.replace('"migrations":[', '"migrations":["9999-later",')),
      /^is of imds-api .*, and this is .*, which does not know 9999-later.*: restore it with a version of imds-api that is not older$/,
    )
    for (const end of [text.length - 1, text.indexOf(lines.at(-2)!), header!.length + 1])
      t.match(await reasonFor(text.slice(0, end)), /^is not whole: its end is missing/)
    const row = lines.find((line) => line.includes('Analytical Engines'))!
    for (const [what, content] of [
      ['another value', text.replace('Analytical Engines', 'Analytical engines')],
      ['a missing row', text.replace(`${row}\n`, '')],
      ['a row that is no JSON', text.replace('"SW1Y 4JH"', '"SW1Y 4JH')],
      ['a row twice', text.replace(row, `${row}\n${row}`)],
      [
        'another table',
        text
          .replace('{"table": "servers"', '{"table": "pg_authid"')
          .replace('{"table":"servers"', '{"table":"pg_authid"'),
      ],
    ] as const)
      t.match(await reasonFor(content), /^is damaged: its lines are not those that were written/, what)
    t.equal(
      (
        await database.pool.query(
          "select from pg_tables where schemaname = 'public' and not starts_with(tablename, 'kysely')",
        )
      ).rowCount,
      0,
    )
    await database.close()
  })

  await t.test('restore brings every row back, and lists the servers that only the store has', async (t) => {
    const { status, stdout, stderr } = await shell(executed('docs/operations.md', 'restore'), other)
    t.match(
      { status, stderr },
      {
        status: 0,
        stderr:
          /^imds-api: secrets, API clients and applications that were replaced or revoked after 20\S+Z are valid again: .*\n$/,
      },
      'it warns of what was revoked',
    )
    t.match(stdout, /^the region gb1 as of 20\S+Z:\n\d+ rows are restored\n1 servers will be published again\n/)
    t.match(stdout, `\n${later.id} of ${ONE} is only in the store: `)
    t.match(await shell('imds-api --check', other), { status: 0 })
    t.match(await shell('imds-api restore --force region.backup', other), {
      status: 65,
      stderr:
        'imds-api: region.backup cannot be restored: the database is not empty. Name an empty one (IMDS_API_STATE_DIR or IMDS_API_DATABASE)\n',
    })
  })

  await t.test(
    'numbers that may have been given after the backup are skipped, also of sequences that had none',
    async (t) => {
      const database = await openState(other.IMDS_API_STATE_DIR)
      t.teardown(() => database.close())
      for (const [sequence, least] of [
        ['ids_cfg', 10_001],
        ['ids_app', 10_001],
        ['compute_actions_id_seq', 1_000_001],
      ] as const) {
        const {
          rows: [row],
        } = await database.pool.query<{ next: number }>(`select nextval('${sequence}') as next`)
        t.ok(row!.next >= least, sequence)
      }
    },
  )

  await t.test('the database that was backed up, and a second copy of it, are refused by the store', async (t) => {
    const foreign = /^(?:imds-api: )?the store has the region of another database \(\S+, and this is \S+\): /
    t.match(await shell('imds-api verify', source.env), { status: 1, stdout: foreign })
    const copy = { ...other, IMDS_API_STATE_DIR: join(directory, 'copy') }
    t.match(await shell('imds-api restore region.backup', copy), {
      status: 1,
      stdout: '',
      stderr: new RegExp(`${foreign.source}.* imds-api restore --force FILE\n$`),
    })
    t.notOk(existsSync(copy.IMDS_API_STATE_DIR), 'it is refused before anything is done')
  })

  await t.test(
    'a server by its URL takes the same backup, and its backup has the same rows',
    { skip: withoutPostgres() },
    async (t) => {
      const { url } = await startPostgres(t)
      const env = { ...other, IMDS_API_DATABASE: url, IMDS_STORE: `file:${join(directory, 'lost')}` }
      t.match(await shell('imds-api restore - < region.backup', env), {
        status: 0,
        stderr: /are valid again/,
      })
      const { stdout } = await shell('imds-api backup -', env)
      // What a restore moves: cursors, addresses that are kept, sequences, and the epoch of events.
      const rowsOf = (text: string) =>
        text
          .split('\n{"table":')
          .slice(1)
          .filter((part) => !/^"(allocations|address_pools|region)"/.test(part))
          .map((part) =>
            part
              .split('\n')
              .filter((line) => !line.startsWith('{'))
              .sort(),
          )
      t.strictSame(rowsOf(stdout), rowsOf(readFileSync(file, 'utf8')))

      await t.test('a backup of an earlier version is brought to this one', async (t) => {
        const database = await openDatabase({ kind: 'server', url, passwordFile: undefined }, true, (error) => {
          throw error
        })
        t.teardown(() => database.close())
        await database.pool.query('drop schema public cascade; create schema public')
        const first = readFileSync(file, 'utf8').split('\n', 1)[0]!
        // a version with another migration, which changes rows
        Object.assign(MIGRATIONS, {
          '9002-later': {
            up: (tx: Kysely<unknown>) => sql`update zones set handle = handle || '-2'`.execute(tx),
            oldest: '0001-first',
          },
        })
        const zones = ['{"table":"zones","columns":["id","handle","removed_at"]}', '["zon-aaaa1","gb1-a",null]']
        const sha256 = createHash('sha256')
          .update(`${[first, ...zones].join('\n')}\n`)
          .digest('hex')
        t.match(
          await restoreLines(
            database.db,
            first,
            Readable.from([...zones, JSON.stringify({ rows: 1, sha256 })]),
            NOTHING_MORE,
          ),
          [/^1 rows are restored/],
        )
        t.strictSame(await appliedMigrations(database.db), Object.keys(MIGRATIONS))
        t.strictSame(await database.db.selectFrom('zones').selectAll().execute(), [
          { id: 'zon-aaaa1', handle: 'gb1-a-2', removed_at: null },
        ])
      })
    },
  )

  await t.test(
    'the other machine serves what the first one served, and gives nothing of the later server again',
    async (t) => {
      const api = await startProcess(t, other)
      t.strictSame(await allOf(api), before)
      const next = await create(api)
      t.not(next.id, later.id)
      t.not(next.interfaces[0]!.id, later.interfaces[0]!.id)
      t.not(next.interfaces[0]!.ipv4_address, later.interfaces[0]!.ipv4_address)
      t.equal(recordOf(later.id), record, 'whose record is untouched')
      t.equal(await api.stop(), 0)
    },
  )
})

t.test(
  'a full disk leaves the older backup, and no half of a new one',
  { skip: process.getuid?.() === 0 ? false : 'needs root' },
  async (t) => {
    const disk = join(directory, 'disk')
    mkdirSync(disk)
    const script =
      'mount -t tmpfs -o size=16k tmpfs "$0" && echo old > "$0/region.backup"; "$@" "$0/region.backup"; echo "status $?"; ls "$0"; cat "$0/region.backup"'
    const { stdout, stderr } = await run(
      ['unshare', '--mount', 'sh', '-c', script, disk, process.execPath, IMDS_API, 'backup'],
      { env: { ...programEnvironment(), ...source.env } },
    )
    t.equal(stdout.toString(), 'status 74\nregion.backup\nold\n')
    t.match(stderr, /ENOSPC[^]*region\.backup is not written\n$/)
  },
)

t.test('large tables need little memory', async (t) => {
  const database = await openSource()
  // long rows after short ones
  const data = "case when number <= 2000 then '{}' else json_build_object('text', repeat(md5(number::text), 32700)) end"
  await database.pool.query(
    `
      insert into config_maps (id, account_id, name, data, bytes)
      select 'cfg-' || number, $1, '', ${data}, 0
      from generate_series(1, 2060) as number`,
    [ONE],
  )
  await database.close()
  const small = { NODE_OPTIONS: '--max-old-space-size=64' }
  t.strictSame(await shell('imds-api backup large.backup', { ...source.env, ...small }), {
    status: 0,
    stdout: '',
    stderr: '',
  })
  t.ok(statSync(join(directory, 'large.backup')).size > 60_000_000)
  t.match(
    await shell('imds-api restore large.backup', {
      ...other,
      ...small,
      IMDS_API_STATE_DIR: join(directory, 'third'),
      IMDS_STORE: `file:${join(directory, 'third-store')}`,
    }),
    { status: 0, stderr: /^imds-api: secrets, .* are valid again: [^\n]*\n$/ },
  )
})
