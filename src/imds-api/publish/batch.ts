/**
 * Publishes servers of the outbox together, in one transaction: takes their locks, reads which rows they have, writes
 * their records to the store (write-servers.ts) and deletes their rows with one statement.
 *
 * Two processes never publish one server at the same time, because the locks are PostgreSQL's. A kill between the store
 * and the database leaves the rows: the records are published again, unchanged.
 *
 *   a server that the store refuses   only this one waits: its oldest row is tried again every RETRY_SECONDS, and at its
 *                                     next change
 *   an error of the database in the data (SQLSTATE 22 or 23)
 *                                     each server of the batch is published by itself, and only the faulty one waits
 *   another error of the database     all wait
 */
import { sql } from 'kysely'
import { setValues } from '../changes/own-rows.ts'
import { tryLock } from '../database/advisory-locks.ts'
import { PLAN_BY_INDEX, runPrepared } from '../database/prepared.ts'
import { codeOf, inTransaction, type Tx, type Db } from '../database/transaction.ts'
import { checkHistory, type OwnStore } from './region-database.ts'
import { RETRY_SECONDS } from './turns.ts'
import { writeServers, type WriteParts } from './write-servers.ts'

/** Dependencies of a batch. */
export interface BatchParts extends WriteParts, OwnStore<WriteParts['store']> {
  readonly db: Db
}

/** The rows of the outbox that a transaction has read, by server. */
type Rows = Map<string, readonly number[]>

/** PostgreSQL's codes for an error of the rows themselves: data exceptions and violated constraints. */
const FAULT_OF_ROWS = /^2[23]/

/**
 * Locks the ids that no other process is publishing, and returns them. Advisory locks, since row locks would make
 * changes of these servers wait for the store. The commit is not flushed: if it is lost, the servers are published
 * again.
 */
const lock = (tx: Tx, ids: readonly string[]) =>
  runPrepared(
    tx,
    sql<{ id: string }>`
      select id from (
        select id, ${tryLock('publish', sql<string>`id`)} as locked,
          set_config('synchronous_commit', 'off', true), ${PLAN_BY_INDEX}
        from unnest(${ids}::text[]) as id offset 0) as locks
      where locked`,
  )

/**
 * Publishes servers, and returns those that another process is publishing. Rejects if the store or the database cannot
 * be used, once nothing is in flight.
 */
export async function publishBatch(parts: BatchParts, ids: readonly string[]): Promise<readonly string[]> {
  const { db, count, log } = parts
  const rows: Rows = new Map()
  try {
    return await inTransaction(db, (tx) => publishRows(parts, tx, ids, rows))
  } catch (error) {
    if (!FAULT_OF_ROWS.test(codeOf(error)) || rows.size === 0) throw error
    const skipped: string[] = []
    if (ids.length > 1) {
      for (const id of ids) skipped.push(...(await publishBatch(parts, [id])))
      return skipped
    }
    const [id] = ids as [string]
    count('failed')
    log.error(
      { code: 'server-faulty', server: id, err: error },
      'the rows of this server are faulty: it is not published. Retrying every minute',
    )
    await inTransaction(db, async (tx) => {
      const isFree = (await lock(tx, [id])).length > 0
      if (isFree && (await postpone(tx, [...rows.values()].flat())))
        await setValues(tx, 'servers', id, { publish_fault: (error as Error).message })
    })
    return skipped
  }
}

/**
 * Deletes only the rows that it read before it composed the records: later changes have to be published too. `rows`
 * gets them. Returns the servers that another process is publishing.
 */
async function publishRows(parts: BatchParts, tx: Tx, ids: readonly string[], rows: Rows): Promise<readonly string[]> {
  rows.clear()
  const free = await lock(tx, ids)
  const waiting = sql<{ server_id: string; rows: readonly number[] }>`
    select server_id, array_agg(id order by id) as rows from outbox
    where server_id = any(${free.map(({ id }) => id)}) group by server_id`
  const found = await runPrepared(tx, waiting)
  for (const one of found) rows.set(one.server_id, one.rows.map(Number))
  const refused = await writeServers(parts, tx, [...rows.keys()])
  const done = [...rows].flatMap(([id, of]) => (refused.has(id) ? of.slice(1) : of))
  if (done.length > 0) await runPrepared(tx, sql`delete from outbox where id = any(${done})`)
  const retried = [...refused].map((id) => rows.get(id)![0]!) // the oldest: the addresses that it freed are still in the record
  if (retried.length > 0) await postpone(tx, retried)
  await checkHistory(tx, parts.history)
  return ids.filter((id) => !rows.has(id))
}

/** Tries rows of the outbox again later. False: they are gone. */
async function postpone(tx: Tx, rows: readonly number[]): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable('outbox')
    .set({ retry_at: sql`now() + make_interval(secs => ${RETRY_SECONDS})`, rebuild: false })
    .where(sql<boolean>`id = any(${[...rows]})`)
    .executeTakeFirst()
  return numUpdatedRows > 0n
}
