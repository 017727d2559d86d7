/**
 * The database of the region in a store. The store has its id, so another database, such as a new one or that of
 * another region, overwrites nothing by mistake.
 *
 * The store may lose confirmed changes when Redis is emptied, restarted, or replaced by a replica that lacked them. The
 * database has the history (store/fleet.ts) of the store to which everything is published that is not in the outbox:
 *
 *   a process finds another history   it enqueues all servers, also those that were deleted lately or whose records
 *                                     came back, and sets the history of the database in the same transaction
 *   a process finds an earlier order  the store went back, perhaps together with its history (a snapshot of its machine):
 *                                     the same, and the region gets the mark "behind" (store/order.ts) with the last
 *                                     order that the database or the process knows, so that it gets later ones. A mark
 *                                     that a hypervisor has set has the same effect, at most every MARK_INTERVAL_MS. It
 *                                     is cleared when everything was published
 *   the store remembers higher numbers than the database has given (changes/numbers.ts)
 *                                     nothing is published: the database is an older backup, or a copy of one. It is
 *                                     for `imds-api reconcile` to take over the region
 *   a batch ends                      it is rolled back if the store that it wrote to has another history: another
 *                                     process has found a newer one, and all servers wait to be published there
 */
import { sql } from 'kysely'
import type { Log } from '../../runtime/log-codes.ts'
import type { Fleet } from '../../store/fleet.ts'
import type { Publisher } from '../../store/publisher.ts'
import { isAhead } from '../../store/order.ts'
import { higherNumbers, isDatabaseBehind, readNumbers, type Numbers } from '../changes/numbers.ts'
import { countRebuild, enqueueAllServers } from '../changes/rebuild.ts'
import { inTransaction, type Tx, type Db } from '../database/transaction.ts'

/**
 * A store that has the region of our database, and its history when it was opened. `isBehind`: it has lost changes, and
 * not everything was published again yet. `noteOrder`: it has given this order to what was published.
 */
export interface OwnStore<Store = Publisher> {
  readonly store: Store
  readonly history: string
  readonly isBehind: boolean
  readonly noteOrder: (order: number) => void
}

/**
 * How long a process waits for its connection to move to the store that another process has found. Then it assumes that
 * its own store is the right one.
 */
const MOVE_TIMEOUT_MS = 10_000
/** A hypervisor may set a mark at any time, and everything is published for it. */
const MARK_INTERVAL_MS = 600_000
const OLDER =
  'the store remembers higher numbers of ids and changes than this database has given: it is an older backup, or a ' +
  'copy. Run imds-api reconcile'
const REPLACED = 'the store was replaced, and this process is still connected to the former one'

/**
 * Returns a function that opens the store. It rejects if the store has the region of another database, or was replaced.
 * The publisher calls it every second, since the store may lose changes at any time.
 */
export function openOwnRegion(db: Db, open: () => Promise<Publisher>, log: Pick<Log, 'warn'>): () => Promise<OwnStore> {
  /** The last history that both had, and when. */
  let agreed = { history: '', atMs: 0 }
  /** The last order that the store has given to this process. The database has it after the next look. */
  let given = 0
  let markedAtMs = -Infinity
  /** The numbers at the last look. PostgreSQL has written them by now, so a crash does not lose them. */
  let safe: Numbers = new Map()
  const noteOrder = (order: number) => {
    given = Math.max(given, order)
  }
  return async () => {
    const region = await db
      .selectFrom('region')
      .select(['database_id', 'store_history', 'store_order', 'store_behind'])
      .executeTakeFirstOrThrow()
    const { database_id: ours, store_history: known } = region
    const order = Math.max(given, Number(region.store_order)) // first: it must not be later than the store's
    const store = await open()
    const { database, history, complete, last = order, behind } = await store.fleet.state()
    if (database !== undefined && database !== ours) throw new Error(formatForeign(database, ours))
    const remembered = await store.fleet.numbers()
    const numbers = await readNumbers(db) // after it: other processes of this database give numbers meanwhile
    if (isDatabaseBehind(numbers, remembered)) throw new Error(OLDER)
    const isKnown = (known ?? history) === history
    if (!isKnown && agreed.history === history && performance.now() - agreed.atMs < MOVE_TIMEOUT_MS)
      throw new Error(REPLACED)
    const isBehind = last < order
    const isMarked = behind !== undefined && behind.text !== region.store_behind
    const isDue = isMarked && performance.now() - markedAtMs > MARK_INTERVAL_MS
    const isReplaced = database === undefined || complete !== history || !isKnown
    if (isReplaced || isBehind || isDue) {
      if (isBehind) await store.fleet.markBehind(order)
      if (isDue) markedAtMs = performance.now()
      await publishLost(db, { store, history }, ours, isReplaced ? log : undefined)
      await store.fleet.markComplete(history)
      given = 0
    } else {
      if (last > order && !isAhead(last, Date.now()))
        await sql`update region set store_order = greatest(store_order, ${last})`.execute(db)
      if (behind !== undefined && !isMarked && (await countRebuild(db)).left === 0)
        await store.fleet.clearBehind(behind)
    }
    await store.fleet.noteNumbers(higherNumbers(safe, remembered))
    safe = numbers
    agreed = { history, atMs: performance.now() }
    return { store, history, isBehind: isBehind || behind !== undefined, noteOrder }
  }
}

/** Rejects if the store has the region of another database. */
export async function checkRegion(db: Db, fleet: Pick<Fleet, 'database'>): Promise<void> {
  const { database_id: ours } = await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()
  const inStore = await fleet.database()
  if (inStore !== undefined && inStore !== ours) throw new Error(formatForeign(inStore, ours))
}

/**
 * Writes to the store first: otherwise a read-only store would enqueue all servers every second. `log` undefined: a
 * condition says it.
 */
async function publishLost(
  db: Db,
  { store, history }: Pick<OwnStore, 'store' | 'history'>,
  ours: string,
  log: Pick<Log, 'warn'> | undefined,
): Promise<void> {
  await store.initialise() // an empty store becomes one that daemons accept
  const inStore = await store.fleet.setDatabase(ours, false)
  if (inStore !== ours) throw new Error(formatForeign(inStore, ours))
  const listed = (await store.list()).map(({ id }) => id)
  const { behind } = await store.fleet.state()
  const servers = await inTransaction(db, async (tx) => {
    // First: it waits for the batches that have passed their check, and other batches wait for this transaction.
    const changes = { store_history: history, store_order: 0, store_behind: behind?.text ?? null }
    await tx.updateTable('region').set(changes).execute()
    return enqueueAllServers(tx, listed)
  })
  if (servers > 0)
    log?.warn(
      { code: 'store-replaced', servers },
      'the store was emptied, restarted or replaced, and may have lost changes: every server is published again',
    )
}

/** Rejects if another process has found that the store with this history was replaced. */
export async function checkHistory(tx: Tx, history: string): Promise<void> {
  const { rows } = await sql`
    select from region where coalesce(store_history, ${history}) = ${history} for share`.execute(tx)
  if (rows.length === 0) throw new Error(REPLACED)
}

/**
 * Gives the database a new id, and writes that to the store. The original database and other copies of the backup are
 * refused from then on. Call it last in the transaction: after a rollback this database would be refused too, until
 * the next `imds-api reconcile`.
 */
export async function renewDatabaseId(tx: Tx, store: Pick<Publisher, 'fleet'>): Promise<void> {
  const { database_id } = await tx
    .updateTable('region')
    .set({ database_id: sql`default` })
    .returning('database_id')
    .executeTakeFirstOrThrow()
  await store.fleet.setDatabase(database_id, true)
}

/** Formats the fault, with its remedy. */
function formatForeign(inStore: string, ours: string): string {
  return (
    `the store has the region of another database (${inStore}, and this is ${ours}): correct IMDS_STORE or ` +
    'IMDS_API_DATABASE. If this database takes its place: imds-api reconcile'
  )
}
