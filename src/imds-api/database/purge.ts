/** Deletes rows that are no longer needed, in batches, so that no statement takes long. */
import { sql, type RawBuilder } from 'kysely'
import type { Tables } from './tables.ts'
import type { Db } from './transaction.ts'

/** The most rows that one statement deletes. */
export const PURGE_BATCH = 1_000

/**
 * Deletes the rows of a table for which a condition is true, except those that another transaction has locked. `batch`:
 * less for rows with many dependent rows.
 */
export async function deleteInBatches(
  db: Db,
  table: keyof Tables,
  condition: RawBuilder<unknown>,
  batch = PURGE_BATCH,
): Promise<void> {
  for (let deleted = batch; deleted > 0;) {
    // the lock: a row does not change between the two reads
    const { numAffectedRows = 0n } = await sql`
      delete from ${sql.table(table)} where ctid = any(array(
        select ctid from ${sql.table(table)} where ${condition} limit ${batch} for update skip locked))`.execute(db)
    deleted = Number(numAffectedRows)
  }
}

/** Runs purges one after another, so that they use one connection. If some fail, rejects like the first of these. */
export async function purgeEach(purges: readonly (() => Promise<void>)[]): Promise<void> {
  const failures: unknown[] = []
  for (const purge of purges) await purge().catch((error: unknown) => failures.push(error))
  if (failures.length > 0) throw failures[0]
}
