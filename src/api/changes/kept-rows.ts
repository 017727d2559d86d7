/**
 * Rows that an account can still read after their end. The newest are kept: otherwise an account that makes and deletes
 * them could fill the database.
 */
import { sql } from 'kysely'
import type { Tx } from '../database/transaction.ts'

/**
 * How many deleted API clients, deleted applications and finished collaborations of an account can still be read: the
 * newest.
 */
const KEPT_MAX = 1000

/**
 * Deletes the oldest revoked API clients or applications beyond KEPT_MAX. Those of the region file stay, because
 * applying it would make them again.
 */
export async function forgetRevoked(tx: Tx, table: 'api_clients' | 'applications', accountId: string): Promise<void> {
  await sql`delete from ${sql.table(table)} where id in (
    select id from ${sql.table(table)} where account_id = ${accountId} and revoked_at is not null and id not in (select id from given_ids)
    order by revoked_at desc offset ${KEPT_MAX})`.execute(tx)
}

/**
 * Deletes the oldest finished collaborations beyond KEPT_MAX. The last one of an address that was rejected or has ended
 * stays, because the region file would give its user access again.
 */
export async function forgetFinished(tx: Tx, accountId: string): Promise<void> {
  await sql`delete from collaborations where id in (
    select id from collaborations finished where account_id = ${accountId} and finished_at is not null and (status = 'cancelled' or exists (
      select from collaborations later where later.account_id = ${accountId} and later.status in ('rejected', 'ended') and lower(later.email) = lower(finished.email)
        and later.finished_at > finished.finished_at))
    order by finished_at desc offset ${KEPT_MAX})`.execute(tx)
}
