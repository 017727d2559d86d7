/**
 * Publishes servers of the outbox together, in one transaction: takes their locks, composes their current records with
 * one query, writes them to the store without waiting between them, and deletes their rows with one statement.
 *
 * Two processes never publish one server at the same time, because the locks are PostgreSQL's. A kill between the store
 * and the database leaves the rows: the records are published again, unchanged.
 *
 *   published, unchanged   the server is `active` (or, removed from the store, `deleted`)
 *   stale                  the store has a higher revision than the database: a restored backup, or a seal by imdsctl.
 *                          Publish above it.
 *   incarnation, invalid, address-owned, failed
 *                          only this server waits; its row keeps the fault. Try again every RETRY_SECONDS and at its
 *                          next change. `incarnation`: the store has another server with this id, and keeps it. That
 *                          happens after a restore of an older database (reconcile.ts).
 *   an error of the database in the data (SQLSTATE 22 or 23)
 *                          each server of the batch is published by itself, and only the faulty one waits
 *   another error of the database
 *                          all wait
 */
import { sql } from 'kysely'
import type { Log } from '../../runtime/log-codes.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'
import {
  StoreUnavailable,
  type Publisher,
  type PutRefusal,
  type PutResult,
  type RemoveResult,
} from '../../store/publisher.ts'
import { cancelActions } from '../changes/actions.ts'
import { setValues } from '../changes/own-rows.ts'
import { finishPublish, OTHER_INCARNATION } from '../changes/handshake.ts'
import { tryLock } from '../database/advisory-locks.ts'
import { PLAN_BY_INDEX, prepare } from '../database/prepared.ts'
import { inTransaction, type Tx, type Db } from '../database/transaction.ts'
import { composeMany, type Composed } from './compose.ts'
import { checkHistory, type OwnStore } from './region-database.ts'
import { RETRY_SECONDS } from './turns.ts'

/** Dependencies of a batch. `hasToStop`: an error of the store is no fault of a server then, since a stop closes it. */
export interface BatchParts extends OwnStore<Pick<Publisher, 'put' | 'remove'>> {
  readonly db: Db
  readonly count: (result: PublishOutcome) => void
  readonly hasToStop: () => boolean
  readonly log: Log
}

export const PUBLISH_OUTCOMES = [
  'published',
  'unchanged',
  'removed',
  'stale',
  'incarnation',
  'invalid',
  'address-owned',
  'failed',
] as const
export type PublishOutcome = (typeof PUBLISH_OUTCOMES)[number]

/** How the publish of a server ended. `refused`: by the store. */
type ServerEnd = 'done' | 'refused'
type Ends = Map<string, ServerEnd>
/** The rows of the outbox that a transaction has read, by server. */
type Rows = Map<string, readonly number[]>

interface Failed {
  readonly kind: 'failed'
  readonly reason: string
}
type Refused = Exclude<PutRefusal, { kind: 'stale' }> | Failed

/** PostgreSQL's codes for an error of the rows themselves: data exceptions and violated constraints. */
const FAULT_OF_ROWS = /^2[23]/
const IDS: readonly string[] = []

/**
 * Locks the ids that no other process is publishing, and returns them. Advisory locks, since row locks would make
 * changes of these servers wait for the store. The commit is not flushed: if it is lost, the servers are published
 * again.
 */
const lock = prepare(
  'outbox-lock',
  [IDS],
  (ids) => sql<{ id: string }>`
    select id from (
      select id, ${tryLock('publish', sql<string>`id`)} as locked,
        set_config('synchronous_commit', 'off', true), ${PLAN_BY_INDEX}
      from unnest(${ids}::text[]) as id offset 0) as locks
    where locked`,
)
const selectRows = prepare(
  'outbox-rows',
  [IDS],
  (ids) => sql<{ server_id: string; rows: readonly number[] }>`
    select server_id, array_agg(id order by id) as rows from outbox
    where server_id = any(${ids}) group by server_id`,
)
const deleteRows = prepare(
  'outbox-delete',
  [[] as readonly number[]],
  (rows) => sql`delete from outbox where id = any(${rows})`,
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
    if (!FAULT_OF_ROWS.test((error as { code?: string }).code ?? '') || rows.size === 0) throw error
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
  const found = await selectRows(
    tx,
    free.map(({ id }) => id),
  )
  for (const one of found) rows.set(one.server_id, one.rows.map(Number))
  const ends = await publishServers(parts, tx, [...rows.keys()])
  const idsWith = (end: ServerEnd) => [...ends].filter(([, one]) => one === end).map(([id]) => id)
  const refused = idsWith('refused').map((id) => rows.get(id)!)
  const done = [...idsWith('done').map((id) => rows.get(id)!), ...refused.map((of) => of.slice(1))].flat()
  if (done.length > 0) await deleteRows(tx, done)
  const retried = refused.map((of) => of[0]!) // the oldest: the addresses that it freed are still in the record
  if (retried.length > 0) await postpone(tx, retried)
  await checkHistory(tx, parts.history)
  return ids.filter((id) => !rows.has(id))
}

async function publishServers(parts: BatchParts, tx: Tx, ids: readonly string[]): Promise<Ends> {
  const ends: Ends = new Map()
  let waiting = ids
  while (waiting.length > 0) {
    const servers = await composeMany(tx, waiting)
    for (const id of waiting) ends.set(id, 'done') // unless one of the steps below sets another end
    const ready: Composed[] = []
    for (const server of servers) ready.push(await withoutActions(tx, server))
    waiting = await writeServers(parts, tx, ready, ends)
  }
  return ends
}

/** Writes servers to the store. Returns those that have to be published above the revision of the store. */
async function writeServers(parts: BatchParts, tx: Tx, servers: readonly Composed[], ends: Ends): Promise<string[]> {
  const { count, log, store } = parts
  const stale: string[] = []
  for (const { server, result } of await eachInStore(parts, servers, (one) => writeOne(store, one))) {
    const { id } = server
    switch (result.kind) {
      case 'published':
      case 'unchanged':
      case 'removed':
      case 'absent':
        count(result.kind === 'absent' ? 'removed' : result.kind)
        if (result.kind !== 'absent') parts.noteOrder(result.order)
        await finishPublish(tx, id, server)
        break
      case 'stale': {
        await checkTransactionOpen(tx)
        count('stale')
        log.warn(
          { code: 'revision-behind', server: id, revision: server.revision, inStore: result.revision },
          'the store has a higher revision of this server: publishing above it',
        )
        await tx
          .updateTable('servers')
          .set({ revision: result.revision + 1 })
          .where('id', '=', id)
          .where('revision', '<=', result.revision)
          .execute()
        stale.push(id)
        break
      }
      case 'incarnation':
        if (isLeaving(server) && !server.awaitsCompute) {
          count('removed') // the store has nothing of it
          await finishPublish(tx, id, server)
        } else ends.set(id, await recordRefusal(parts, tx, server, result))
        break
      default:
        ends.set(id, await recordRefusal(parts, tx, server, result))
    }
  }
  return stale
}

/** A server whose id the store has given to another has nothing there, and no hypervisor got an action for it. */
async function withoutActions(tx: Tx, server: Composed): Promise<Composed> {
  const isOther = server.fault?.startsWith(OTHER_INCARNATION) === true
  return isOther && isLeaving(server) && server.awaitsCompute && (await cancelActions(tx, server.id))
    ? { ...server, awaitsCompute: false }
    : server
}

/**
 * Rejects if PostgreSQL has ended the transaction and its locks, because this process was suspended: another process
 * may have published the servers, so an unexpected record in the store is no fault.
 */
async function checkTransactionOpen(tx: Tx): Promise<void> {
  await sql`select`.execute(tx)
}

/**
 * Asks the store about all servers at once, and returns the results in order. An error of one server is its result. Any
 * other error rejects, once nothing is in flight.
 */
async function eachInStore<T>(
  { hasToStop }: BatchParts,
  servers: readonly Composed[],
  ask: (server: Composed) => Promise<T>,
): Promise<{ readonly server: Composed; readonly result: T | Failed }[]> {
  const budget = new TurnBudget() // a record is checked, and perhaps encrypted, before it is sent
  const asked: Promise<T | Failed>[] = []
  for (const server of servers) {
    asked.push(
      ask(server).catch((error: unknown): Failed => {
        if (error instanceof StoreUnavailable || hasToStop()) throw error
        return { kind: 'failed', reason: (error as Error).message }
      }),
    )
    asked.at(-1)!.catch(() => undefined) // reported below
    await budget.spend(0)
  }
  await Promise.allSettled(asked)
  const results = await Promise.all(asked)
  return servers.map((server, i) => ({ server, result: results[i]! }))
}

/** True also for a deleted server: a store that lost the removal may have its record again. */
function isLeaving({ status }: Composed): boolean {
  return status === 'deleting' || status === 'deleted'
}

function writeOne(store: Pick<Publisher, 'put' | 'remove'>, server: Composed): Promise<PutResult | RemoveResult> {
  const { id, awaitsCompute, revision, record, userData } = server
  return isLeaving(server) && !awaitsCompute
    ? store.remove(id, revision, { incarnation: record.incarnation })
    : store.put(record, userData ?? 'none')
}

/** Keeps a refusal with its server: the condition server-refused names it. */
async function recordRefusal({ count }: BatchParts, tx: Tx, { id }: Composed, refusal: Refused): Promise<ServerEnd> {
  count(refusal.kind)
  await setValues(tx, 'servers', id, { publish_fault: formatFault(refusal) })
  return 'refused'
}

function formatFault(refusal: Refused): string {
  if (refusal.kind === 'failed') return refusal.reason
  if (refusal.kind === 'incarnation')
    return (
      `${OTHER_INCARNATION}the store has another server with this id, or had it until lately. This happens after a ` +
      'restore of an older database: delete this server, run imds-api reconcile, and create it again'
    )
  return refusal.kind === 'invalid'
    ? `invalid: ${refusal.faults.map(({ path, message }) => `${path} ${message}`).join('; ')}`
    : `address-owned: ${refusal.address} of the network ${refusal.network} belongs to ${refusal.owner}`
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
