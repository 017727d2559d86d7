/**
 * A database that was restored from an older backup: the store has servers that it does not know, with the ids and
 * addresses that it would give next. `imds-api reconcile` runs as a process.
 */
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { sql } from 'kysely'
import t, { type Test } from 'tap'
import { nextId, placeOf } from '../../src/imds-api/changes/allocate.ts'
import { giveOutActions, reportOutcome } from '../../src/imds-api/changes/action-queue.ts'
import { readNumbers } from '../../src/imds-api/changes/numbers.ts'
import type { Db } from '../../src/imds-api/database/transaction.ts'
import { ALL_ROWS, type Prefix } from '../../src/imds-api/model/resources.ts'
import { POOL_KINDS } from '../../src/imds-api/model/pools.ts'
import type { Publisher } from '../../src/store/open.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, type ApiOptions, rowOf } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'

t.setTimeout(300_000) // as under `npm test`

const FORMER = '00000000-0000-4000-8000-000000000000'

interface Server {
  readonly id: string
  readonly interfaces: readonly { readonly ipv4_address: string; readonly mac_address: string }[]
  readonly cloud_ips: readonly { readonly id: string; readonly public_ipv4: string }[]
}

/**
 * A region with a store, which is a directory of files unless it has a URL. `forget`: brings the database back to what
 * it was before its first server.
 */
async function aRestored(t: Test, { url, ...options }: ApiOptions & { readonly url?: string } = {}) {
  const api = await anApi(t, options)
  const { db, pool } = api.database
  const storeUrl = url ?? `file:${join(api.directory, 'store')}`
  const store = await openTestStore(t, { url: storeUrl, ...(url !== undefined && { region: 'gb1' }) })
  const create = async (account: typeof ONE | typeof TWO, body: object = {}) =>
    (await api.call('POST', '/1.0/servers', { image: 'img-deb12', ...body }, account)).body as Server
  const faultOf = async (id: string) => (await rowOf(db, 'servers', id)).publish_fault
  const actionsOf = async () => giveOutActions(db, 'hv-1', 60, sql<{ id: number; kind: string }>`to_json(action)`)
  const env = {
    ...programEnvironment(),
    ...(url !== undefined && { IMDS_REGION: 'gb1' }),
    ...{ IMDS_STORE: storeUrl, IMDS_API_DATABASE: api.url },
  }
  return {
    api,
    db,
    store,
    env,
    create,
    faultOf,
    actionsOf,
    /** Reports every action that can be fetched as succeeded, until the server has this state. */
    has: async (id: string, status: string) =>
      until(async () => {
        for (const action of await actionsOf())
          await reportOutcome(db, api.accounts, 'hv-1', action.id, { outcome: 'succeeded', fault: null })
        return (await rowOf(db, 'servers', id)).status === status
      }, `${id} to be ${status}`),
    forget: async () => {
      const { rows } = await pool.query<{ name: string }>(
        "select sequencename as name from pg_sequences where sequencename ~ '^(ids|place|compute_actions_id)_'",
      )
      for (const { name } of rows) await pool.query(`alter sequence ${name} restart`)
      for (const table of [
        'outbox',
        'compute_actions',
        'server_keys',
        'server_group_members',
        'cloud_ips',
        'interfaces',
        'servers',
        'allocations',
      ])
        await pool.query(`delete from ${table}`)
    },
    /** Runs the command, as the documents do. */
    reconcile: async (options = '') => {
      const example = executed('docs/operations/imds-api.md', 'reconcile')
      const script = `imds-api() { ${process.execPath} ${IMDS_API} "$@"; }; ${example.trim()} ${options}`
      const { status, stdout, stderr } = await run(['bash', '--norc', '-c', script], { env })
      await db.updateTable('region').set({ store_history: null }).execute() // that of the test's publisher is not Redis' own
      return { status, lines: stdout.toString().trimEnd().split('\n'), stderr }
    },
  }
}

const OLDER = 'this database is older than the store: it was restored from a backup, or is a copy'
const TAKES_OVER = 'it takes over the region, and skips ids and addresses that may have been given since the backup'

const addressesOf = ({ interfaces, cloud_ips }: Server) => [
  ...interfaces.flatMap(({ ipv4_address, mac_address }) => [ipv4_address, mac_address]),
  ...cloud_ips.map(({ public_ipv4 }) => public_ipv4),
]

t.test('after a restore no id or address of a running server is given again', async (t) => {
  const { api, db, store, create, faultOf, actionsOf, has, forget, reconcile } = await aRestored(t, {
    compute: 'reported',
    url: (await startRedis(t)).url,
    reports: () =>
      Promise.resolve({
        revision: 1,
        byName: new Map([['boot', { text: 'done', revision: 1, receivedAt: '2026-11-20T15:04:05Z' }]]),
      }),
  })
  await api.startPublisher(store)
  const running = [await create(ONE, { cloud_ip: true, user_data: 'b25l' }), await create(ONE)]
  const removed = await create(ONE)
  for (const { id } of [...running, removed]) await has(id, 'active')
  await api.call('DELETE', `/1.0/servers/${removed.id}`)
  await has(removed.id, 'deleted')
  await store.fleet.noteNumbers(await readNumbers(db)) // as imds-api does
  const recordsNow = async () => Promise.all(running.map(async ({ id }) => store.get(id)))
  const records = await recordsNow()
  await forget()
  const fresh = [
    await create(TWO, { user_data: 'dHdv', metadata_options: { reports: 'enabled' } }),
    await create(ONE),
    await create(TWO),
  ]
  const heldFor = ({ id, interfaces: [one], cloud_ips }: Server) =>
    `Held: ${[one!.mac_address, one!.ipv4_address, ...cloud_ips.flatMap(({ public_ipv4 }) => [public_ipv4, '2001:db8:1::1'])].join(', ')}. When its machine is gone: imdsctl remove ${id}, and imds-api reconcile`
  const sorted = running.toSorted((a, b) => (a.id < b.id ? -1 : 1))

  await t.test('reconcile takes over the region, and names the servers that share an id', async (t) => {
    const named = [
      ...sorted.map(
        (one) =>
          `${one.id}, of ${ONE}, has the id of another server of this database: delete that one here, and create it again. ${heldFor(one)}`,
      ),
      '3 servers: 0 differ in the store, 3 wait to be published, and 2 are only in the store',
    ]
    t.match(await reconcile('--dry-run'), { status: 1, lines: [OLDER, ...named], stderr: '' })
    t.match(await reconcile(), {
      status: 1, // of the new ones, the store refuses each
      lines: [
        OLDER,
        TAKES_OVER,
        ...named,
        '2 addresses are held for servers that only the store has',
        'published 0 servers',
      ],
      stderr: /^imds-api: secrets, .* after the last event \(20\S+Z\) are valid again, /,
    })
  })

  await t.test('the publish of a new server with such an id is refused, and the fault has the remedy', async (t) => {
    t.strictSame(
      fresh.map(({ id }) => id),
      [...running, removed].map(({ id }) => id),
      'the ids are given again',
    )
    await until(
      async () => (await Promise.all(fresh.map(({ id }) => faultOf(id)))).every((fault) => fault !== null),
      'every publish to be refused',
    )
    for (const { id } of fresh)
      t.equal(
        await faultOf(id),
        'incarnation: the store has another server with this id, or had it until lately. This happens after a restore ' +
          'of an older database: delete this server, run imds-api reconcile, and create it again',
      )
    t.strictSame(await recordsNow(), records, 'the records of the running servers are untouched')
    t.strictSame(await db.selectFrom('servers').select('status').distinct().execute(), [{ status: 'creating' }])
    t.strictSame(await actionsOf(), [], 'no hypervisor creates a machine with such an id')
    const { body } = await api.call('GET', `/1.0/servers/${fresh[0]!.id}/reports`, undefined, TWO)
    t.strictSame(body, [], 'nobody reads what the guest of the other server has reported')
  })

  await t.test('deleting it leaves the record of the other server as it is', async (t) => {
    for (const { id } of fresh)
      t.equal((await api.call('DELETE', `/1.0/servers/${id}`, undefined, id === fresh[1]!.id ? ONE : TWO)).status, 202)
    for (const { id } of fresh) await has(id, 'deleted')
    t.strictSame(await recordsNow(), records)
  })

  const counts = (servers: number, others: number) =>
    `${servers} servers: 0 differ in the store, 0 wait to be published, and ${others} are only in the store`
  const ofDeleted = sorted.map(
    (one) =>
      `${one.id}, of ${ONE}, has the id of another server of this database: delete that one here, and create it again. ${heldFor(one)}`,
  )
  await t.test('then reconcile holds the addresses of the running servers, once', async (t) => {
    t.match(await reconcile(), {
      status: 0,
      lines: [
        ...ofDeleted,
        counts(0, 2),
        '4 addresses are held for servers that only the store has',
        'published 0 servers',
      ],
      stderr: '',
    })
    t.match(await reconcile(), { status: 0, lines: [...ofDeleted, counts(0, 2), 'published 0 servers'] })
  })

  await t.test('then new servers get other ids and addresses, and are published', async (t) => {
    const next = [await create(TWO, { cloud_ip: true }), await create(ONE), await create(TWO)]
    for (const { id } of next) await has(id, 'active')
    const taken = running.flatMap((server) => [
      server.id,
      ...addressesOf(server),
      ...server.cloud_ips.map(({ id }) => id),
    ])
    t.strictSame(
      next
        .flatMap((server) => [server.id, ...addressesOf(server), ...server.cloud_ips.map(({ id }) => id)])
        .filter((one) => taken.includes(one)),
      [],
    )
    t.strictSame(await recordsNow(), records)
    for (const kind of POOL_KINDS) await sql`alter sequence ${sql.table(placeOf(kind))} restart`.execute(db) // a pool that is full begins again
    const again = await create(TWO)
    t.notOk(
      addressesOf(again).some((address) => taken.includes(address)),
      'also when a pool begins again',
    )
  })

  await t.test('a server of which the store has a higher revision is published above it', async (t) => {
    const { id } = await create(ONE)
    await has(id, 'active')
    await api.drained()
    await store.seal(id)
    t.match(await reconcile(), { status: 0, lines: [`${id} differs in index, revision`] })
    t.match((await store.get(id))?.document, { revision: 3 })
  })

  await t.test('when the store no longer has such a server, reconcile frees its addresses', async (t) => {
    await store.remove(sorted[0]!.id)
    const { lines } = await reconcile()
    t.match(lines, [
      ofDeleted[1],
      String,
      /^[24] addresses are free again: the store has their servers no more$/,
      'published 0 servers',
    ])
    t.strictSame(
      await db.selectFrom('allocations').select('holder').distinct().where('holder', 'like', 'store:%').execute(),
      [{ holder: `store:${sorted[1]!.id}` }],
    )
  })
})

for (const kind of ['Redis', 'files'] as const)
  t.test(`of two restores from one backup none gives an id, address or action again (${kind})`, async (t) => {
    const url = kind === 'Redis' ? { url: (await startRedis(t)).url } : {}
    const { api, db, store, create, forget, reconcile } = await aRestored(t, { compute: 'reported', ...url })
    const give = async (account: typeof ONE | typeof TWO) => {
      const ids = await Promise.all(
        ALL_ROWS.filter(({ givesIds }) => givesIds).map(({ prefix }) => nextId(db, prefix as Prefix)),
      )
      const cloudIp = (await api.call('POST', '/1.0/cloud_ips', {}, account)).body as Record<string, string>
      const server = await create(account)
      const { id: action } = await db.selectFrom('compute_actions').select('id').executeTakeFirstOrThrow()
      return [...ids, cloudIp['id'], cloudIp['public_ipv4'], cloudIp['public_ipv6'], ...addressesOf(server), action]
    }
    const given = await give(ONE)
    await store.fleet.noteNumbers(await readNumbers(db))
    for (const account of [TWO, ONE] as const) {
      await forget()
      t.match(await reconcile(), { status: 0, lines: [OLDER, TAKES_OVER] })
      given.push(...(await give(account)))
    }
    t.equal(given.length, new Set(given).size)
  })

/** Kills imds-api reconcile when it has given the region in the store to the new id of the database, before the commit. */
async function killBeforeCommit(t: Test, db: Db, store: Publisher, env: NodeJS.ProcessEnv): Promise<void> {
  await sql`create function wait() returns trigger language plpgsql as 'begin perform pg_sleep(60); end'`.execute(db)
  await sql`
    create constraint trigger wait after update on region deferrable initially deferred
    for each row execute function wait()`.execute(db)
  const former = await store.fleet.database()
  const reconciling = spawn(process.execPath, [IMDS_API, 'reconcile'], { env, stdio: 'ignore' })
  const waiting = sql`select pid from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'`
  await until(async () => (await waiting.execute(db)).rows.length === 1, 'the commit of imds-api reconcile')
  t.not(await store.fleet.database(), former)
  reconciling.kill('SIGKILL')
  await sql`select pg_terminate_backend(pid) from (${waiting}) as waiting`.execute(db)
  await sql`drop function wait cascade`.execute(db)
}

t.test('a copy of a database publishes nothing, until reconcile takes over the region for it', async (t) => {
  const { api, db, store, env, create, has, reconcile } = await aRestored(t)
  t.match(await reconcile(), { status: 0, stderr: '' }, 'with a store that has nothing yet')
  await api.startPublisher(store)
  const { id } = await create(ONE)
  await has(id, 'active')
  const databaseId = async () =>
    (await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()).database_id
  const own = await databaseId()
  t.equal(await store.fleet.database(), own)
  await db.updateTable('region').set({ database_id: FORMER }).execute() // a copy of the database, as it was before
  const foreign = `the store has the region of another database (${own}, and this is ${FORMER})`
  t.match(await reconcile('--dry-run'), { status: 1, lines: [foreign] })
  await killBeforeCommit(t, db, store, env)
  t.match(await reconcile('--dry-run'), { status: 1, lines: [/^the store has the region of another database/] })
  t.match(await reconcile(), { status: 0, lines: [String, TAKES_OVER] })
  t.notMatch(await databaseId(), own)
  t.equal(await store.fleet.database(), await databaseId())
  const away = await run([process.execPath, IMDS_API, 'reconcile'], {
    env: { ...env, IMDS_STORE: 'redis://127.0.0.1:1', IMDS_REGION: 'gb1' },
  })
  t.match(away, { status: 69, stderr: /^imds-api: cannot use the store: / })
})
