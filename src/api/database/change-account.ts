/** Runs a change of an account's resources. */
import type { Kysely } from 'kysely'
import { refuseChange, type ChangeRequest } from '../model/account-states.ts'
import type { Refusal } from '../refusal.ts'
import { lockAccount } from './limits.ts'
import type { Tables } from './tables.ts'
import { inTransaction, type Change } from './transaction.ts'

/**
 * Commits a change of an account's resources, unless the state of the account forbids it. Changes of one account wait for each other: they cannot deadlock,
 * and what one of them has checked (the state of the account, that a destination exists, that a limit has room) stays true until it commits.
 * `request`: what the change is, where model/account-states.ts lists it.
 */
export async function changeAccount<T>(
  database: Kysely<Tables>, accountId: string, change: (transaction: Change) => Promise<T | Refusal>, request: ChangeRequest = 'every other change',
): Promise<T | Refusal> {
  return inTransaction(database, async (transaction) => refuseChange(request, await lockAccount(transaction, accountId)) ?? change(transaction))
}
