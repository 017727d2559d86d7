/**
 * What an event says of its request, and the filters of events. The index `events_resource` goes: only the triggers of
 * events use it, which come with this migration.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  // first, as each change does: so no change has its events half written
  'lock table accounts in exclusive mode',
  'alter table events add column request_id text, add column idempotency_key text',
  // One expression each, so that no plan reads other events of the account.
  `create index events_of_type on events ((account_id || ' ' || type), id)`,
  `create index events_of_resource on events ((account_id || ' ' || type || ' ' || resource), id)`,
  'drop index events_resource',
]

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
