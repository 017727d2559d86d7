/**
 * `imds-api reconcile`: brings the store to what the database says, for a store that is doubtful, and for a database that
 * was restored. It returns its exit status, and may run beside imds-api.
 *
 *   the database is older than the store, or the store has another one   this database takes its place: it skips the
 *                      numbers that the other one may have given (changes/numbers.ts), has a new id, so that copies of
 *                      the backup are refused, and a new epoch of events, which ends the cursors of lost ones
 *   the store has lost changes    as in imds-api: every server is published again (publish/region-database.ts)
 *   a record differs              it is published again
 *   only the store has a record   it is named, and its addresses are held. Its machine may run: nothing is removed
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { pino } from 'pino'
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import type { Output } from '../../runtime/output.ts'
import type { Publisher } from '../../store/publisher.ts'
import type { ApiConfig } from '../service/config.ts'
import { holdAddresses } from '../changes/held-addresses.ts'
import { isDatabaseBehind, readNumbers, skipNumbers } from '../changes/numbers.ts'
import { countRebuild, enqueueAgain, findRefusedServers } from '../changes/rebuild.ts'
import { withStoreAndDatabase, type CommandParts } from './commands.ts'
import type { Database } from '../database/open.ts'
import { DatabaseReport } from '../http/database-errors.ts'
import { inTransaction, type Db } from '../database/transaction.ts'
import { compareStore, type OtherServer, type StoreComparison } from '../publish/compare.ts'
import { MAX_BATCH_SERVERS, OutboxPublisher } from '../publish/outbox-publisher.ts'
import { openOwnRegion, renewDatabaseId, type OwnStore } from '../publish/region-database.ts'

type ReconcileParts = CommandParts<Pick<ApiConfig, 'store' | 'database'>>

const CHECK_INTERVAL_MS = 100
/** The pause between two counts of the outbox, as a multiple of the time that one takes. */
const PAUSE_FACTOR = 20
const SILENT = pino({ enabled: false })
/** A time, for to_char. */
const TIME = 'YYYY-MM-DD"T"HH24:MI:SS"Z"'
/** The most servers that are named for one reason. */
const MAX_NAMED = 20
/** This process has no metrics. */
const nothing = () => undefined

/** `dryRun`: prints what differs, and changes nothing. `stopping`: ends it early; the next run, and any imds-api, continues. */
export async function reconcile(
  parts: ReconcileParts,
  { dryRun = false }: { readonly dryRun?: boolean },
  stopping: AbortSignal,
): Promise<number> {
  const { output } = parts
  return withStoreAndDatabase(parts, async (database, store, { database_id: ours }) => {
    const { db } = database
    const isOlder = await tellIfOlder(output, db, store, ours)
    if (dryRun) {
      const found = await compareStore(db, store)
      const lines = formatComparison(found)
      output.print([...lines, formatCounts(found)].join('\n'))
      return isOlder || lines.length > 0 ? 1 : EXIT.done
    }
    if (isOlder) await takeOver(output, db, store)
    const openStore = openOwnRegion(database.background.db, () => Promise.resolve(store), SILENT)
    await openStore() // of a store that has lost changes, this enqueues every server
    const found = await compareStore(db, store)
    output.print([...formatComparison(found), formatCounts(found)].join('\n'))
    await inTransaction(db, async (tx) => {
      const { held, freed } = await holdAddresses(tx, found.others)
      if (held > 0) output.print(`${held} addresses are held for servers that only the store has`)
      if (freed > 0) output.print(`${freed} addresses are free again: the store has their servers no more`)
      await enqueueAgain(
        tx,
        found.differences.map(({ server }) => server),
      )
    })
    const isPublished = await publishAll(parts, database, openStore, stopping)
    return isPublished && found.others.every(({ account }) => account !== undefined) ? EXIT.done : 1
  })
}

/** Whether the database has to take over the region in the store. Prints why. */
async function tellIfOlder(output: Output, db: Db, store: Publisher, ours: string): Promise<boolean> {
  const inStore = await store.fleet.database()
  const isForeign = inStore !== undefined && inStore !== ours
  if (isForeign) output.print(`the store has the region of another database (${inStore}, and this is ${ours})`)
  const isBehind = isDatabaseBehind(await readNumbers(db), await store.fleet.numbers())
  if (isBehind) output.print('this database is older than the store: it was restored from a backup, or is a copy')
  return isForeign || isBehind
}

async function takeOver(output: Output, db: Db, store: Publisher): Promise<void> {
  const since = await inTransaction(db, async (tx) => {
    const { rows } = await sql<{ since: string }>`
      select coalesce('the last event (' || to_char(max(created_at) at time zone 'utc', ${TIME}) || ')', 'the backup')
        as since from events`.execute(tx)
    // The store first: if this ends early, the next run finds an older database again.
    await store.fleet.noteNumbers(await skipNumbers(tx, await store.fleet.numbers()))
    await sql`update region set event_epoch = default`.execute(tx)
    await renewDatabaseId(tx, store) // last: this stops all publishers until the commit
    return rows[0]!.since
  })
  output.print('it takes over the region, and skips ids and addresses that may have been given since the backup')
  output.warn(
    'secrets, API clients and applications that were replaced or revoked after ' +
      `${since} are valid again, and so are tokens and ` +
      'sign-ins that were ended: replace or revoke them again before you start imds-api',
  )
}

/**
 * Publishes what was enqueued, by this command or by an earlier one, and names what the store refuses. False: it refuses
 * some.
 */
async function publishAll(
  { output }: ReconcileParts,
  database: Database,
  openStore: () => Promise<OwnStore>,
  stopping: AbortSignal,
): Promise<boolean> {
  const { db, background } = database
  const { left: total, records } = await countRebuild(db)
  const publisher = new OutboxPublisher({
    db: background.db,
    connect: () => database.connect(),
    openStore,
    batchSize: MAX_BATCH_SERVERS,
    count: nothing,
    countBatch: nothing,
    databaseReport: new DatabaseReport(SILENT),
    log: SILENT, // refusals are printed at the end
  })
  publisher.start()
  let left = total
  try {
    for (let tookMs = 0; left > 0 && publisher.problem === undefined && !stopping.aborted;) {
      await sleep(Math.max(CHECK_INTERVAL_MS, PAUSE_FACTOR * tookMs))
      const startedMs = performance.now()
      left = (await countRebuild(db)).left
      tookMs = performance.now() - startedMs
    }
  } finally {
    await publisher.stop()
  }
  if (left > 0) {
    const why = publisher.problem?.reason ?? 'stopped'
    throw new CommandFailure(
      publisher.problem === undefined ? 1 : EXIT.unavailable,
      `${why}; ${left} of ${total} servers are left: imds-api, and the next run of this, publish them`,
    )
  }
  const refused = await findRefusedServers(db, undefined)
  for (const { id, fault } of refused.slice(0, MAX_NAMED)) output.warn(`${id}: ${fault}`)
  if (refused.length > 0) output.warn(`the store refuses ${refused.length} servers: imds-api tries them every minute`)
  output.print(`published ${Math.max(0, records - refused.length)} servers`)
  return refused.length === 0
}

function formatCounts({ servers, waiting, differences, others }: StoreComparison): string {
  return (
    `${servers} servers: ${differences.length} differ in the store, ${waiting} wait to be published, and ` +
    `${others.length} are only in the store`
  )
}

/** A line for each finding, but at most MAX_NAMED of differences and of others. */
function formatComparison({ differences, others }: StoreComparison): string[] {
  const lists = [differences.map(({ server, finding }) => `${server} ${finding}`), others.map(formatOther)]
  return lists.flatMap((list) =>
    list.length > MAX_NAMED ? [...list.slice(0, MAX_NAMED), `and ${list.length - MAX_NAMED} more like this`] : list,
  )
}

function formatOther({ id, account, sharesId, addresses }: OtherServer): string {
  const whose = account === undefined ? 'which cannot be read' : `of ${account}`
  const where = sharesId
    ? `${id}, ${whose}, has the id of another server of this database: delete that one here, and create it again`
    : `${id}, ${whose}, is only in the store: its machine may run, and its guest is served`
  return (
    `${where}. Held: ${addresses.map(({ address }) => address).join(', ')}. When its machine is gone: ` +
    `imdsctl remove ${id}, and imds-api reconcile`
  )
}
