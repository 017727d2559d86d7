/**
 * A store that publishes the region of one database only. The store keeps the id of that database beside the region, so
 * another database, such as a new one or that of another region, overwrites nothing there by mistake.
 */
import type { Kysely } from 'kysely'
import type { Tables } from '../database/tables.ts'
import type { LazyStore } from './lazy-store.ts'

/** The methods that a publisher uses. `initialise` rejects if the store has the region of another database. */
export function claimedStore(
  db: Kysely<Tables>,
  store: LazyStore,
): Pick<LazyStore, 'initialise' | 'get' | 'put' | 'remove'> {
  return {
    initialise: async () => {
      const isNew = await store.initialise()
      const ours = await databaseIdOf(db)
      const claimed = await store.claim(ours, false)
      if (claimed !== ours) throw new Error(formatForeign(claimed, ours))
      return isNew
    },
    get: (id) => store.get(id),
    put: (...args) => store.put(...args),
    remove: (...args) => store.remove(...args),
  }
}

/** The id of a database that has a region. */
export async function databaseIdOf(db: Kysely<Tables>): Promise<string> {
  return (await db.selectFrom('region').select('database_id').executeTakeFirstOrThrow()).database_id
}

/** Says that the store has the region of another database, and what to do. */
export function formatForeign(claimed: string, ours: string): string {
  return (
    `the store has the region of another database (${claimed}, and this is ${ours}): correct IMDS_STORE or ` +
    'IMDS_API_DATABASE. If this database takes its place: imds-api rebuild --force'
  )
}
