/**
 * What the publisher needs to take turns (publish/turns.ts): the account of each row of the outbox, and whether the
 * change was one of few servers.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  "alter table outbox add account_id text not null default '', add urgent boolean not null default false",
  'update outbox set account_id = servers.account_id from servers where servers.id = server_id',
  'create index outbox_turns on outbox (urgent, account_id, id) where retry_at is null',
  'create index outbox_retries on outbox (retry_at) where retry_at is not null',
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
