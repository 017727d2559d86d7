/**
 * The commands that bring the store to what the database says, and compare the two: `rebuild` and `verify`. Each
 * returns its exit status, and may run beside imds-api.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import type { Publisher } from '../store/publisher.ts'
import type { ApiConfig } from './config.ts'
import { advanceDatabase } from './changes/advance.ts'
import { countRebuild, enqueueRebuild, findRefusedServers, type RebuildCount } from './changes/servers.ts'
import { withStoreAndDatabase, type CommandParts } from './commands.ts'
import type { Database } from './database/open.ts'
import { inTransaction, rolledBack, type Db } from './database/transaction.ts'
import { DatabaseReport } from './http/database-errors.ts'
import { formatForeign, openOwnRegion } from './publish/region-database.ts'
import { compareStore, findOnlyInStore, type StoreDifference } from './publish/compare.ts'
import { MAX_BATCH_SERVERS, OutboxPublisher } from './publish/outbox-publisher.ts'
import { surveyStore } from './publish/survey.ts'
import { refuseForeign } from './recovery.ts'

/** `bootSeconds`: for a server that waits for its guest. */
type RebuildParts = CommandParts<Pick<ApiConfig, 'store' | 'database' | 'bootSeconds'>>

/** Options of `rebuild`. `force`: for a store of another database, and to remove much of the region. */
export interface RebuildOptions {
  readonly prune?: boolean
  readonly force?: boolean
}

/** `rebuild --prune` removes no larger share of the records in the store without `--force`. */
const PRUNED_SHARE = 0.05
const CHECK_INTERVAL_MS = 100
/** The pause between two counts of the outbox, as a multiple of the time that one takes. */
const PAUSE_FACTOR = 20
const SILENT = pino({ enabled: false })
/** The most refused servers that are named. */
const MAX_NAMED = 20
/** This process has no metrics. */
const nothing = () => undefined

/**
 * Publishes every server of the database. `stopping`: ends it early; the next run, and any imds-api of the database,
 * continues.
 */
export async function rebuild(parts: RebuildParts, options: RebuildOptions, stopping: AbortSignal): Promise<number> {
  const { output } = parts
  return withStoreAndDatabase(parts, async (database, store, { database_id: ours }) => {
    const { db } = database
    await refuseForeign(store, ours, options.force === true ? undefined : 'rebuild --force')
    if (options.prune === true) await prune(output, db, store, options.force === true)
    await store.fleet.setDatabase(ours, true)
    const enqueued = await inTransaction(db, enqueueRebuild)
    if (enqueued.isContinued) output.print(`an earlier rebuild is continued: ${enqueued.left} servers are left`)
    const status = await publishAll(parts, database, store, enqueued, stopping)
    if (options.prune !== true) {
      const { unknown } = await findOnlyInStore(db, store)
      if (unknown.length > 0)
        output.warn(
          `${unknown.length} servers are only in the store: imds-api verify lists them, and imds-api rebuild ` +
            '--prune removes them',
        )
    }
    return status
  })
}

/** Lists the servers that only the store has, and removes them. */
async function prune(output: Output, db: Db, store: Publisher, force: boolean): Promise<void> {
  const { unknown, records } = await findOnlyInStore(db, store)
  for (const id of unknown) output.print(`${id} is only in the store`)
  if (unknown.length > records * PRUNED_SHARE && !force)
    throw new CommandFailure(
      1,
      `${unknown.length} of ${records} records would be removed, more than ` +
        `${PRUNED_SHARE * 100} %: nothing was done. If that is right: imds-api rebuild --prune --force`,
    )
  for (const id of unknown) await store.remove(id)
  if (unknown.length > 0)
    output.print(`removed ${unknown.length} servers; imds-api advance frees addresses that were kept for them`)
}

/**
 * Publishes until the rebuild is complete, and returns the exit status. `enqueued`: how many servers it began with; a
 * running imds-api may have published some of them.
 */
async function publishAll(
  { output, config: { bootSeconds } }: RebuildParts,
  database: Database,
  store: Publisher,
  enqueued: RebuildCount,
  stopping: AbortSignal,
): Promise<number> {
  const { db, background } = database
  const openStore = openOwnRegion(background.db, () => Promise.resolve(store), SILENT)
  await openStore() // this may enqueue more
  const present = await countRebuild(db)
  const total = Math.max(enqueued.left, present.left)
  const records = Math.max(enqueued.records, present.records)
  const publisher = new OutboxPublisher({
    db: background.db,
    connect: () => database.connect(),
    openStore,
    batchSize: MAX_BATCH_SERVERS,
    bootSeconds,
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
      `${why}; ${left} of ${total} servers are left: imds-api rebuild continues`,
    )
  }
  const refused = await findRefusedServers(db, undefined)
  for (const { id, fault } of refused.slice(0, MAX_NAMED)) output.warn(`${id}: ${fault}`)
  output.print(
    `published ${records - refused.length} servers` +
      (refused.length === 0 ? '' : `; the store refuses ${refused.length}: imds-api tries them every minute`),
  )
  return refused.length === 0 ? EXIT.done : 1
}

/** Compares the store with the database, and prints what differs: the exit status is 1 then. */
export async function verify(parts: CommandParts<Pick<ApiConfig, 'store' | 'database'>>): Promise<number> {
  const { output } = parts
  return withStoreAndDatabase(parts, async ({ db }, store, { database_id: ours }) => {
    const inStore = await store.fleet.database()
    const isForeign = inStore !== undefined && inStore !== ours
    if (isForeign) output.result({ finding: 'foreign', database: inStore }, formatForeign(inStore, ours))
    const { differences, servers, waiting } = await compareStore(db, store)
    for (const one of differences) output.result(one, formatDifference(one))
    const survey = await surveyStore(store)
    const { moved } = await rolledBack(db, (tx) => advanceDatabase(tx, survey, false))
    for (const text of moved) output.result({ finding: 'behind', text }, `imds-api advance would say: ${text}`)
    output.result(
      { servers, different: differences.length, waiting, behind: moved.length },
      `${servers} servers: ${differences.length} differ in the store, ${waiting} wait to be published`,
    )
    return isForeign || differences.length > 0 || moved.length > 0 ? 1 : EXIT.done
  })
}

function formatDifference({ server, finding, fields }: StoreDifference): string {
  switch (finding) {
    case 'missing':
      return `${server} is missing in the store: imds-api rebuild publishes it`
    case 'different':
      return `${server} differs in ${fields!.join(', ')}: imds-api rebuild publishes it again`
    case 'unreadable':
      return `${server} has a record that cannot be read: imds-api rebuild publishes it again`
    case 'unknown':
      return `${server} is only in the store: imds-api rebuild --prune removes it`
  }
}
