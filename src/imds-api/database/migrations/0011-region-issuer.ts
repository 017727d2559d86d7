/**
 * The issuers of accounts go, since the region has one issuer. Their servers are published again, so that no record has a
 * private key any more.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  // first, as each change does: so no change has its events half written
  'lock table accounts in exclusive mode',
  `update servers set revision = revision + 1
    where deleted_at is null and account_id in (select account_id from account_identities)`,
  `insert into outbox (server_id, account_id, urgent)
    select id, account_id, false from servers
    where deleted_at is null and account_id in (select account_id from account_identities) order by id`,
  'drop table identity_keys, account_identities',
  'drop function if exists event_of_account_identities, event_of_identity_keys',
  // the numbers of events have no gaps
  `update events set type = 'account', action = 'update', fields = '{}' where type = 'account_identity'`,
]

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
