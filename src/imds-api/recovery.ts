/** `imds-api advance`, for a database that was restored. */
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Publisher } from '../store/publisher.ts'
import { advance, lastEventAt } from './changes/advance.ts'
import { withStoreAndDatabase, type CommandParts } from './commands.ts'
import { inTransaction } from './database/transaction.ts'
import { formatForeign, renewDatabaseId } from './publish/region-database.ts'
import { surveyStore } from './publish/survey.ts'

/**
 * Moves the database past the store, makes the region in the store its own, and prints what it moved. `force`: the store
 * may have the region of another database.
 */
export async function runAdvance(parts: CommandParts, { force = false }: { force?: boolean }): Promise<number> {
  const { output } = parts
  return withStoreAndDatabase(parts, async ({ db }, store, { database_id: ours }) => {
    const survey = await surveyStore(store)
    await refuseForeign(store, ours, force ? undefined : 'advance --force')
    const { lines, at } = await inTransaction(db, async (tx) => {
      const moved = { lines: await advance(tx, survey), at: await lastEventAt(tx) }
      await renewDatabaseId(tx, store)
      return moved
    })
    output.print(lines.join('\n'))
    output.warn(
      'if this database was restored: secrets, API clients and applications that were replaced or revoked after ' +
        `${at === undefined ? 'the backup' : `its last event (${at.toISOString()})`} are valid again, and so are tokens ` +
        'and sign-ins that were ended: replace or revoke them again before you start imds-api',
    )
    for (const id of survey.unreadable)
      output.warn(
        `the record of ${id} cannot be read: its MAC address and its cloud IPs may be given to others. Publish or ` +
          'remove it, and run imds-api advance',
      )
    return survey.unreadable.length === 0 ? EXIT.done : 1
  })
}

/** Refuses a store that has the region of another database. `command`: what takes it over; undefined: it may have. */
export async function refuseForeign(store: Publisher, ours: string, command: string | undefined): Promise<void> {
  const inStore = await store.fleet.database()
  if (inStore !== undefined && inStore !== ours && command !== undefined)
    throw new CommandFailure(1, formatForeign(inStore, ours, command))
}
