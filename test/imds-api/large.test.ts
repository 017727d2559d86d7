/** Changes of very many rows: of a region file, and of one statement. */
import { sql } from 'kysely'
import t from 'tap'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { aRegion, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, apply } from '../support/programs/api.ts'

/** PostgreSQL takes at most 65,535 parameters in a statement. */
const MANY = 66_000

t.test('a region of more servers than a statement has parameters is applied and published again', async (t) => {
  const { database, call, startPublisher, drained } = await anApi(t)
  const { db, pool } = database
  await call('POST', '/1.0/servers', { image: 'img-deb12' })
  await pool.query('alter table servers disable trigger user') // no events: they take time
  // Without checks of foreign keys, which take longer than a statement may on a slow machine.
  await pool.query(`begin; set local statement_timeout to 0; set local session_replication_role to replica;
    insert into servers (id, account_id, name, status, image_id, server_type_id, zone_id, hypervisor,
      compatibility_mode, disk_encrypted, architecture)
    select 'srv-m' || number, account_id, '', 'active', image_id, server_type_id, zone_id, hypervisor, false, false,
      architecture
      from servers, generate_series(2, ${MANY}) as number;
    commit`)
  const enqueued = async () =>
    (await pool.query<{ count: number }>('select count(distinct server_id) from outbox')).rows[0]!.count
  await db.deleteFrom('outbox').execute()
  await apply(database, aRegion({ domain: 'gb2.example.com' }))
  t.equal(await enqueued(), MANY)
  const { rows } = await pool.query('select revision, count(*) from servers group by revision')
  t.strictSame(rows, [{ revision: 2, count: MANY }], 'each has a new revision')
  await db.deleteFrom('outbox').execute()
  const { id } = await db.selectFrom('servers').select('id').where('status', '=', 'creating').executeTakeFirstOrThrow()
  await pool.query("insert into outbox (server_id, account_id) select $1, '' from generate_series(1, $2::integer)", [
    id,
    MANY,
  ])
  await startPublisher()
  await drained()
  t.match(
    await call('GET', `/1.0/servers/${id}`),
    { body: { status: 'active' } },
    'a server that changed so often while the store was away',
  )
})

t.test('the events of many changes in one statement are written at once, in one order of accounts', async (t) => {
  const { db } = (await anApi(t)).database
  await sql`
    insert into config_maps (id, account_id, name, data, bytes)
    select 'cfg-many' || number, case number % 2 when 0 then ${ONE} else ${TWO} end, '', '{}', 2
    from generate_series(1, 20000) as number`.execute(db)
  const [startedMs, rename] = [performance.now(), sql`update config_maps set name = 'new' where id like 'cfg-many%'`]
  await inTransaction(db, async (tx) => {
    await rename.execute(tx)
    t.strictSame((await sql`select from event_changes where is_first`.execute(tx)).rows.length, 1)
  })
  t.comment(`${(performance.now() - startedMs).toFixed()} ms`)
  const { rows } = await sql<{ action: string; events: number }>`
    select action, count(*) as events from events where account_id = ${ONE} and type = 'config_map' group by action order by action`.execute(
    db,
  )
  t.strictSame(rows, [
    { action: 'create', events: 10_000 },
    { action: 'update', events: 10_000 },
  ])
  t.strictSame((await sql`select from event_changes`.execute(db)).rows, [])
})
