/** The purges of rows that are no longer needed: more than a batch of each. */
import t from 'tap'
import { purgeActions } from '../../src/imds-api/changes/action-queue.ts'
import { purgeKeys } from '../../src/imds-api/changes/keyed-change.ts'
import { PURGE_BATCH } from '../../src/imds-api/database/purge.ts'
import { APPLICATION, CLIENT_OF, GRACE, ONE } from '../support/fixtures/region.ts'
import { anApi, openTransaction } from '../support/programs/api.ts'

const api = await anApi(t)
const { db, pool } = api.database
const MANY = 2 * PURGE_BATCH + 500

async function count(table: string, condition = 'true'): Promise<number> {
  const { rows } = await pool.query<{ count: number }>(`select count(*) from ${table} where ${condition}`)
  return rows[0]!.count
}

/** Inserts families, each with access and refresh tokens of some ages in days: less than 0 is in the future. */
async function insertFamilies(families: number, revoked: boolean, access: number[], refresh: number[]): Promise<void> {
  const insertTokens = (table: string, values: string, ages: string) => `
    insert into ${table} (${values}, sha256, expires_at)
    select id, ${values === 'family_id' ? '' : "'{}',"} sha256(random()::text::bytea), now() - age * interval '1 day'
    from families cross join unnest(${ages}::float[]) as age`
  await pool.query(
    `with families as (
      insert into token_families (application_id, user_id, scopes, revoked_at)
      select $1, $2, '{}', case when $4 then now() end from generate_series(1, $3::int) returning id),
    access as (${insertTokens('access_tokens', 'family_id, scopes', '$5')})
    ${insertTokens('refresh_tokens', 'family_id', '$6')}`,
    [APPLICATION, GRACE, families, revoked, access, refresh],
  )
}

t.test('all tokens that are not kept are deleted, and all families without one that is kept', async (t) => {
  await api.userToken(GRACE) // makes the application
  await pool.query('delete from token_families')
  await insertFamilies(250, true, [-1], [-1, 1])
  await insertFamilies(250, false, [2, 2], [1, 1, 1])
  await insertFamilies(250, false, [0.5, 2], [1, 1])
  await insertFamilies(250, false, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], [-1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
  await api.auth.purge()
  t.equal(await count('token_families'), 500)
  t.strictSame(
    [await count('access_tokens'), await count('access_tokens', "expires_at > now() - interval '1 day'")],
    [250, 250],
  )
  t.strictSame([await count('refresh_tokens'), await count('refresh_tokens', 'expires_at > now()')], [250, 250])
})

t.test('all expired keys are deleted', async (t) => {
  await pool.query(
    `insert into idempotency_keys (owner, client, key, position, digest, status, body, omitted, created_at)
    select $1, $2, n, n, '', 200, '', '{}', now() - n % 2 * interval '25 hours' from generate_series(1, $3 * 2) n`,
    [ONE, CLIENT_OF[ONE], MANY],
  )
  await purgeKeys(db)
  t.equal(await count('idempotency_keys'), MANY)
})

t.test('all old actions are deleted, and all but the newest 1,000 of a server', async (t) => {
  const { body } = await api.call('POST', '/1.0/servers', { image: 'img-deb12' })
  const { id } = body as { id: string }
  await pool.query('delete from compute_actions')
  const insert = (actions: number, age: string) =>
    pool.query(
      `insert into compute_actions (server_id, kind, requested_at, finished_at, outcome)
      select $1, 'reboot', at, at, 'succeeded'
      from generate_series(1, $2::int) n cross join lateral (select now() - $3::interval - n * interval '1 s') as _ (at)`,
      [id, actions, age],
    )
  await insert(MANY, '31 days')
  await insert(MANY, '1 day')
  await insert(500, '0 s')
  await purgeActions(db)
  t.equal(await count('compute_actions'), 1_000)
  t.equal(await count('compute_actions', "finished_at > now() - interval '1 day 600 s'"), 1_000)
})

t.test('a row that another transaction has locked is left for the next purge', async (t) => {
  await pool.query('delete from token_families')
  await insertFamilies(250, true, [], [])
  const other = await openTransaction(db)
  await other.selectFrom('token_families').select('id').limit(1).forUpdate().execute()
  await api.auth.purge()
  t.equal(await count('token_families'), 1)
  await other.rollback().execute()
  await api.auth.purge()
  t.equal(await count('token_families'), 0)
})
