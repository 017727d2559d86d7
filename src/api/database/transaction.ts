/** Runs a change in a transaction. */
import type { Kysely, Transaction } from 'kysely'
import { isRefusal, type Refusal } from '../model/refusal.ts'
import type { Tables } from './tables.ts'

/** A transaction of our database. */
export type Tx = Transaction<Tables>
/** Reads of our database, inside of a transaction or not. */
export type Reader = Kysely<Tables>

const ATTEMPTS = 5
/** PostgreSQL's codes for a transaction that may succeed when it is repeated: serialization failure and deadlock. */
const REPEATABLE = ['40001', '40P01']

/** Commits what `change` wrote, unless it returns a refusal. Repeats it after a deadlock. */
export async function inTransaction<T>(
  database: Kysely<Tables>,
  change: (tx: Tx) => Promise<T | Refusal>,
): Promise<T | Refusal> {
  for (let attempt = 1; ; attempt++) {
    const transaction = await database.startTransaction().execute()
    try {
      const result = await change(transaction)
      await (isRefusal(result) ? transaction.rollback() : transaction.commit()).execute()
      return result
    } catch (error) {
      if (!transaction.isCommitted && !transaction.isRolledBack)
        await transaction
          .rollback()
          .execute()
          .catch(() => {
            /* the connection broke */
          })
      if (attempt === ATTEMPTS || !REPEATABLE.includes((error as { code?: string }).code ?? '')) throw error
    }
  }
}
