/** Transactions of our database. */
import { sql, type Kysely, type Transaction } from 'kysely'
import type { Tables } from './tables.ts'

export type Tx = Transaction<Tables>
/** Our database: its pool, or a transaction of it. */
export type Db = Kysely<Tables>

const MAX_ATTEMPTS = 5
/** PostgreSQL's codes for a transaction that may succeed when it is repeated: serialization failure and deadlock. */
const REPEATABLE = ['40001', '40P01']

/** The connection was lost during the commit of a change, which may have been made or not. */
class CommitLost extends Error {
  /** http/database-errors.ts has its response. */
  readonly code = 'COMMIT_LOST'
}

/**
 * Runs `work` in a transaction, and again after a deadlock. Whatever it throws rolls back. Rejects with CommitLost if the
 * answer of PostgreSQL to the commit is lost.
 */
export async function inTransaction<T>(db: Db, work: (tx: Tx) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    let isCommitting = false as boolean // TypeScript does not see that it changes
    try {
      return await db.transaction().execute(async (tx) => {
        const result = await work(tx)
        // the triggers of events: no limit of PostgreSQL bounds what a commit runs
        await sql`set constraints all immediate`.execute(tx)
        isCommitting = true
        return result
      })
    } catch (error) {
      // an error of the severity ERROR has rolled back
      if (isCommitting && (error as { severity?: string }).severity !== 'ERROR')
        throw new CommitLost((error as Error).message, { cause: error })
      if (attempt === MAX_ATTEMPTS || !isRepeatable(error)) throw error
    }
  }
}

/** The code of an error of PostgreSQL; '': it has none. */
export function codeOf(error: unknown): string {
  return (error as { code?: string }).code ?? ''
}

/** Whether PostgreSQL has refused a transaction, or a query alone, because of others at the same time. */
export function isRepeatable(error: unknown): boolean {
  return REPEATABLE.includes(codeOf(error))
}

/** Runs `work` in a transaction that is rolled back: for a dry run. */
export async function rolledBack<T>(db: Db, work: (tx: Tx) => Promise<T>): Promise<T> {
  const done = new Error('the transaction is rolled back on purpose')
  let result: T
  await inTransaction(db, async (tx) => {
    result = await work(tx)
    throw done
  }).catch((error: unknown) => {
    if (error !== done) throw error
  })
  return result!
}
