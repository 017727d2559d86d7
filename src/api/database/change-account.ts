/** Runs a change of an account's resources. */
import type { Kysely } from 'kysely'
import type { Refusal } from '../refusal.ts'
import { lockAccount } from './limits.ts'
import type { Tables } from './tables.ts'
import { inTransaction, type Change } from './transaction.ts'

/**
 * Commits a change of an account's resources. Changes of one account wait for each other: they cannot deadlock, and what one of them has checked (that a
 * destination exists, that a limit has room) stays true until it commits.
 */
export async function changeAccount<T>(
  database: Kysely<Tables>, accountId: string, change: (transaction: Change) => Promise<T | Refusal>,
): Promise<T | Refusal> {
  return inTransaction(database, async (transaction) => {
    await lockAccount(transaction, accountId)
    return change(transaction)
  })
}
