/**
 * Who belongs to which account: its owner, and the users of its accepted collaborations. Unions, because with OR
 * PostgreSQL reads a whole table.
 */
import { sql, type RawBuilder } from 'kysely'
import type { Db } from '../database/transaction.ts'

/** The ids of the users of accounts, for `in`. `accountIds`: an expression that is an array of ids. */
export function usersOf(accountIds: RawBuilder<readonly string[]>): RawBuilder<string> {
  return sql`(
    select owner_id from accounts owned where owned.id = any(${accountIds})
    union
    select user_id from collaborations
    where collaborations.account_id = any(${accountIds}) and collaborations.status = 'accepted'
  )`
}

/** The accounts that a user owns, or has access to by an accepted collaboration. */
export async function accountsOf(db: Db, userId: string): Promise<readonly string[]> {
  const { rows } = await sql<{ readonly id: string }>`
    select id from accounts where owner_id = ${userId}
    union
    select account_id from collaborations where user_id = ${userId} and status = 'accepted'
    order by id`.execute(db)
  return rows.map(({ id }) => id)
}
