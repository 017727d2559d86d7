/**
 * The incarnation of a server: of two servers with one id, after a restore of an older database, the store refuses the
 * second one. A backup of before this migration gets the same ones. `is_published` takes the place of the table
 * `claimed_ids`, which stays, since programs of the version before may run at the same time. Every server is published
 * again, with its incarnation and a place in the order of the region.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  'alter table servers add column if not exists incarnation text',
  'alter table servers add column if not exists is_published boolean not null default false',
  `update servers set incarnation = md5(id || ' ' || extract(epoch from created_at)), revision = revision + 1,
    is_published = exists (select from claimed_ids where claimed_ids.id = servers.id)`,
  'alter table servers alter column incarnation set not null',
  'alter table servers alter column incarnation set default gen_random_uuid()',
  `insert into outbox (server_id, account_id, rebuild, urgent)
    select id, account_id, true, false from servers where deleted_at is null order by id`,
]

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
