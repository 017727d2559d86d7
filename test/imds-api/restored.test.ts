/**
 * A database that was restored from an older backup: the store has servers that it does not know, with the ids and
 * addresses that it would give next.
 */
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { sql } from 'kysely'
import t, { type Test } from 'tap'
import { advance } from '../../src/imds-api/changes/advance.ts'
import { nextId, placeOf } from '../../src/imds-api/changes/allocate.ts'
import { giveOutActions, reportOutcome } from '../../src/imds-api/changes/action-queue.ts'
import { inTransaction, type Db } from '../../src/imds-api/database/transaction.ts'
import { PREFIXES } from '../../src/imds-api/model/ids.ts'
import { POOL_KINDS } from '../../src/imds-api/model/pools.ts'
import { surveyStore } from '../../src/imds-api/publish/survey.ts'
import type { Publisher } from '../../src/store/open.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, type ApiOptions, rowOf, serverOf, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'

t.setTimeout(300_000) // as under `npm test`

const SKIPPED = '10000 ids of each kind, up to 10000 addresses of each kind and 1000000 numbers of actions are skipped'
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
async function aRestored(t: Test, { url, ...options }: ApiOptions & { readonly url?: string }) {
  const api = await anApi(t, options)
  const { db, pool } = api.database
  const storeUrl = url ?? `file:${join(api.directory, 'store')}`
  const store = await openTestStore(t, { url: storeUrl, ...(url !== undefined && { region: 'gb1' }) })
  const create = async (account: typeof ONE | typeof TWO, body: object = {}) =>
    (await api.call('POST', '/1.0/servers', { image: 'img-deb12', ...body }, account)).body as Server
  const faultOf = async (id: string) => (await rowOf(db, 'servers', id)).publish_fault
  const actionsOf = async () => giveOutActions(db, 'hv-1', 60, sql<{ id: number; kind: string }>`to_json(action)`)
  return {
    api,
    db,
    store,
    storeUrl,
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
        'claimed_ids',
        'allocations',
      ])
        await pool.query(`delete from ${table}`)
    },
    advance: async () => {
      const survey = await surveyStore(store)
      let lines: readonly string[] = []
      await inTransaction(db, async (tx) => {
        lines = await advance(tx, survey)
      })
      return lines
    },
  }
}

const addressesOf = ({ interfaces, cloud_ips }: Server) => [
  ...interfaces.flatMap(({ ipv4_address, mac_address }) => [ipv4_address, mac_address]),
  ...cloud_ips.map(({ public_ipv4 }) => public_ipv4),
]

t.test('after a restore no id or address of a running server is given again', async (t) => {
  const { api, db, store, create, faultOf, actionsOf, has, forget, advance } = await aRestored(t, {
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
  const recordsNow = async () => Promise.all(running.map(async ({ id }) => store.get(id)))
  const records = await recordsNow()
  await forget()

  const fresh = [
    await create(TWO, { user_data: 'dHdv', metadata_options: { reports: 'enabled' } }),
    await create(ONE),
    await create(TWO),
  ]
  await t.test('advance moves the database past the store, and names the servers that share an id', async (t) => {
    t.match(await advance(), [
      'the store has grp- ids up to number 2, the database up to 0',
      'the store has cip- ids up to number 1, the database up to 0',
      /^the store has addresses of the pool 203\.0\.113\.0\/24 up to number 0$/,
      /^the store has addresses of the pool 2001:db8:1::\/64 up to number 0$/,
      '2 addresses are kept for servers that only the store has',
      SKIPPED,
      ...fresh
        .slice(0, 2)
        .map(
          ({ id }, i) =>
            `${id} of ${i === 0 ? TWO : ONE} has the id of a server of ${ONE} in the store: delete it, run imds-api advance again, and create it again; the other one is left as it is`,
        )
        .sort(),
    ])
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
    const remedy =
      'This happens after a restore of an older database: delete this server, run imds-api advance, and create it again'
    t.equal(
      await faultOf(fresh[0]!.id),
      `taken: the store has another server with this id, of the account ${ONE}. ${remedy}`,
    )
    t.equal(
      await faultOf(fresh[1]!.id),
      `taken: the store has another server with this id, of the account ${ONE}. ${remedy}`,
      'also one of the same account',
    )
    t.equal(
      await faultOf(fresh[2]!.id),
      `taken: the store had another server with this id, which was removed. ${remedy}`,
    )
    t.strictSame(await recordsNow(), records, 'the records of the running servers are untouched')
    t.strictSame(await db.selectFrom('servers').select('status').distinct().execute(), [{ status: 'creating' }])
    t.strictSame(await actionsOf(), [], 'no hypervisor creates a machine with such an id')
    const { body } = await api.call('GET', `/1.0/servers/${fresh[0]!.id}`, undefined, TWO)
    t.match(body, { metadata_options: { reports: 'enabled' } })
    t.notOk('reports' in (body as object), 'nobody reads what the guest of the other server has reported')
  })

  await t.test('deleting it leaves the record of the other server as it is', async (t) => {
    for (const { id } of fresh)
      t.equal((await api.call('DELETE', `/1.0/servers/${id}`, undefined, id === fresh[1]!.id ? ONE : TWO)).status, 202)
    for (const { id } of fresh) await has(id, 'deleted')
    t.strictSame(await recordsNow(), records)
  })

  await t.test('then advance keeps the addresses of the running servers, once', async (t) => {
    const onlyInStore = running.map(
      ({ id, interfaces: [one], cloud_ips }, i) =>
        `${id} of ${ONE} is only in the store: its guest is served, and its addresses are kept (${[one!.mac_address, one!.ipv4_address, ...(i === 0 ? [cloud_ips[0]!.public_ipv4, '2001:db8:1::1'] : [])].join(', ')}). When its machine is gone: imdsctl remove ${id}, and imds-api advance`,
    )
    t.strictSame(await advance(), [
      '4 addresses are kept for servers that only the store has',
      SKIPPED,
      ...onlyInStore.toSorted(),
    ])
    t.strictSame(await advance(), [SKIPPED, ...onlyInStore.toSorted()], 'the second run only skips')
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

  await t.test('the revision of a server that both have is moved above that of the store', async (t) => {
    const { id } = await create(ONE)
    await has(id, 'active')
    await api.drained()
    await setRow(db, 'servers', id, { revision: 0 })
    t.match(await advance(), [
      '1 servers have a higher revision in the store: they are published above it',
      SKIPPED,
      ...running.map(() => String),
    ])
    await api.drained()
    t.match((await store.get(id))?.document, { revision: 2 })
  })

  await t.test('when the store no longer has such a server, advance frees its addresses', async (t) => {
    await store.remove(running[0]!.id)
    t.match(await advance(), [
      '4 addresses are free again, since the store no longer has their servers',
      SKIPPED,
      new RegExp(`^${running[1]!.id} `),
    ])
    t.strictSame(
      await db.selectFrom('allocations').select('holder').distinct().where('holder', 'like', 'store:%').execute(),
      [{ holder: `store:${running[1]!.id}` }],
    )
  })
})

t.test('after a restore no id, address or action that the store does not show is given again', async (t) => {
  const { api, db, create, forget, advance } = await aRestored(t, { compute: 'reported' })
  const give = async (account: typeof ONE | typeof TWO) => {
    const ids = await Promise.all(PREFIXES.map((prefix) => nextId(db, prefix)))
    const cloudIp = (await api.call('POST', '/1.0/cloud_ips', {}, account)).body as Record<string, string>
    const server = await create(account)
    const { id: action } = await db.selectFrom('compute_actions').select('id').executeTakeFirstOrThrow()
    return [...ids, cloudIp['id'], cloudIp['public_ipv4'], cloudIp['public_ipv6'], ...addressesOf(server), action]
  }
  const lost = await give(ONE)
  await forget()
  await advance()
  const next = await give(TWO)
  t.equal(next.length, lost.length)
  t.strictSame(
    next.filter((one) => lost.includes(one)),
    [],
  )
})

/** Kills imds-api advance when it has given the region in the store to the new id of the database, before the commit. */
async function killBeforeCommit(t: Test, db: Db, store: Publisher, env: NodeJS.ProcessEnv): Promise<void> {
  await sql`create function wait() returns trigger language plpgsql as 'begin perform pg_sleep(60); end'`.execute(db)
  await sql`
    create constraint trigger wait after update on region deferrable initially deferred
    for each row execute function wait()`.execute(db)
  const former = await store.fleet.database()
  const advancing = spawn(process.execPath, [IMDS_API, 'advance'], { env, stdio: 'ignore' })
  const waiting = sql`select pid from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'`
  await until(async () => (await waiting.execute(db)).rows.length === 1, 'the commit of imds-api advance')
  t.not(await store.fleet.database(), former)
  advancing.kill('SIGKILL')
  await sql`select pg_terminate_backend(pid) from (${waiting}) as waiting`.execute(db)
  await sql`drop function wait cascade`.execute(db)
}

t.test('imds-api advance compares the database with the store, beside a running imds-api', async (t) => {
  const { api, db, store, storeUrl, create, forget, has } = await aRestored(t, { ownServer: true })
  const { url } = serverOf(join(api.directory, 'state'))
  const env = { ...programEnvironment(), IMDS_STORE: storeUrl, IMDS_API_DATABASE: url }
  const runExample = async (example: string) => {
    const script = `imds-api() { ${process.execPath} ${IMDS_API} "$@"; }; ${example}`
    const { status, stdout, stderr } = await run(['bash', '--norc', '-c', script], { env })
    return { status, stdout: stdout.toString(), stderr }
  }
  const command = () => runExample(executed('docs/operations/imds-api.md', 'advance'))
  const warning =
    /^imds-api: if this database was restored: secrets, .* after its last event \(20\S+Z\) are valid again, [^\n]*\n$/
  t.match(await command(), { status: 0, stdout: `${SKIPPED}\n`, stderr: warning }, 'with a store that has nothing yet')
  await api.startPublisher(store)
  const { id } = await create(ONE)
  await has(id, 'active')
  t.match(
    await runExample(executed('docs/operations/imds-api.md', 'rebuild')),
    {
      status: 0,
      stdout: '1 servers: 0 differ in the store, 0 wait to be published\npublished 1 servers\n',
      stderr: '',
    },
    'the commands that rebuild the store',
  )
  await forget()
  t.match(await command(), {
    status: 0,
    stdout: new RegExp(
      `^(.*\n)*the store has srv- ids up to number 10002, the database up to 0\n(.*\n)*${id} of ${ONE} is only in the store: `,
    ),
    stderr: warning,
  })
  const databaseId = async () =>
    (await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()).database_id
  const own = await databaseId()
  t.equal(await store.fleet.database(), own)
  await db.updateTable('region').set({ database_id: FORMER }).execute() // a copy of the database, as it was before
  t.match(await command(), {
    status: 1,
    stdout: '',
    stderr: `the store has the region of another database (${own}, and this is ${FORMER}): correct IMDS_STORE or IMDS_API_DATABASE. If this database takes its place: imds-api advance --force\n`,
  })
  t.match(await run([process.execPath, IMDS_API, 'advance', '--force'], { env }), { status: 0 })
  t.notMatch(await databaseId(), own)
  t.equal(await store.fleet.database(), await databaseId())
  await killBeforeCommit(t, db, store, env)
  t.match(await command(), { status: 1, stdout: '', stderr: / imds-api advance --force\n$/ })
  t.match(await run([process.execPath, IMDS_API, 'advance', '--force'], { env }), { status: 0 })
  t.equal(await store.fleet.database(), await databaseId())
  const away = await run([process.execPath, IMDS_API, 'advance'], {
    env: { ...env, IMDS_STORE: 'redis://127.0.0.1:1', IMDS_REGION: 'gb1' },
  })
  t.match(away, { status: 69, stderr: /^imds-api: cannot use the store: / })
})
