/**
 * Events name the resources that show the change when they are read (resources/kit/affected.ts): they keep what a
 * resource was linked to before. No event is written for what shows a changed resource, and none is found by its type
 * alone.
 */
import { sql, type Kysely } from 'kysely'

const SHOWN = ['servers', 'cloud_ips', 'server_groups', 'database_servers', 'images', 'api_clients', 'collaborations']

const STATEMENTS = [
  // first, as each change does: so no change has its events half written
  'lock table accounts in exclusive mode',
  `alter table events add column links text[] not null default '{}'`,
  'drop index events_of_type',
  ...[...SHOWN, 'accounts', 'users'].map((table) => `drop function if exists shown_${table} cascade`),
]

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
