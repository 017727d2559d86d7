/**
 * The database of the region in a store. The store has its id, so another database, such as a new one or that of
 * another region, overwrites nothing by mistake.
 *
 * The store may lose confirmed changes when Redis is emptied, restarted, or replaced by a replica that lacked them.
 * Then all servers are enqueued, and also deleted ones whose records came back.
 */
import { sql } from 'kysely'
import type { Log } from '../../runtime/log-codes.ts'
import type { Publisher } from '../../store/publisher.ts'
import { enqueueAllServers } from '../changes/servers.ts'
import { inTransaction, type Tx, type Db } from '../database/transaction.ts'

/**
 * Returns a function that opens the store. It rejects if the store has the region of another database. The publisher
 * calls it every second, since the store may lose changes at any time.
 */
export function openOwnRegion(
  db: Db,
  open: () => Promise<Publisher>,
  log: Pick<Log, 'warn'>,
): () => Promise<Publisher> {
  /** The last history. Another process may have completed a new one while we still wrote to the old server. */
  let seen: string | undefined
  return async () => {
    const ours = await databaseIdOf(db)
    const store = await open()
    const { database, history, complete } = await store.fleet.state()
    if (database !== undefined && database !== ours) throw new Error(formatForeign(database, ours))
    if (database === undefined || complete !== history || (seen ?? history) !== history) {
      await publishLost(db, store, ours, log)
      await store.fleet.markComplete(history)
    }
    seen = history
    return store
  }
}

/** Writes to the store first: otherwise a read-only store would enqueue all servers every second. */
async function publishLost(db: Db, store: Publisher, ours: string, log: Pick<Log, 'warn'>): Promise<void> {
  await store.initialise() // an empty store becomes one that daemons accept
  const inStore = await store.fleet.setDatabase(ours, false)
  if (inStore !== ours) throw new Error(formatForeign(inStore, ours))
  const listed = (await store.list()).map(({ id }) => id)
  const servers = await inTransaction(db, (tx) => enqueueAllServers(tx, listed))
  if (servers > 0)
    log.warn(
      { code: 'store-replaced', servers },
      'the store was emptied, restarted or replaced, and may have lost changes: every server is published again',
    )
}

/** The id of a database that has a region. */
export async function databaseIdOf(db: Db): Promise<string> {
  return (await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()).database_id
}

/**
 * Gives the database a new id, and writes that to the store. The original database and other copies of the backup are
 * refused from then on. Call it last in the transaction: after a rollback this database would be refused too, until
 * `--force` takes the region back.
 */
export async function renewDatabaseId(tx: Tx, store: Pick<Publisher, 'fleet'>): Promise<void> {
  const { database_id } = await tx
    .updateTable('region')
    .set({ database_id: sql`default` })
    .returning('database_id')
    .executeTakeFirstOrThrow()
  await store.fleet.setDatabase(database_id, true)
}

/** Formats the fault, with its remedy. `command`: of imds-api, to take over the region. */
export function formatForeign(inStore: string, ours: string, command = 'rebuild --force'): string {
  return (
    `the store has the region of another database (${inStore}, and this is ${ours}): correct IMDS_STORE or ` +
    `IMDS_API_DATABASE. If this database takes its place: imds-api ${command}`
  )
}
