/** What the commands of imds-api share. */
import type { Selectable } from 'kysely'
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import type { Output } from '../../runtime/output.ts'
import { openStore } from '../../store/open.ts'
import { StoreUnavailable, type Publisher } from '../../store/publisher.ts'
import { regionFault, type ApiConfig } from '../service/config.ts'
import { migrate } from '../database/migrate.ts'
import { openDatabase, type Database } from '../database/open.ts'
import type { Tables } from '../database/tables.ts'

/** What a command needs. */
export interface CommandParts<Config extends Pick<ApiConfig, 'database'> = ApiConfig> {
  readonly config: Config
  readonly output: Output
}

/** Opens the database for a command. */
export function openForCommand({ config, output }: CommandParts<Pick<ApiConfig, 'database'>>): Promise<Database> {
  return openDatabase(config.database, true, (error) => output.warn(error.message))
}

/** Uses the database, with the tables of this version. */
export async function withDatabase<T>(
  parts: CommandParts<Pick<ApiConfig, 'database'>>,
  use: (database: Database) => Promise<T>,
): Promise<T> {
  const database = await openForCommand(parts)
  try {
    await migrate(database.db)
    return await use(database)
  } finally {
    await database.close()
  }
}

/**
 * Uses the store and the database, and the row of its region. Rejects with a CommandFailure if the store is unavailable,
 * or is that of another region.
 */
export async function withStoreAndDatabase<T>(
  parts: CommandParts<Pick<ApiConfig, 'store' | 'database'>>,
  use: (database: Database, store: Publisher, region: Selectable<Tables['region']>) => Promise<T>,
): Promise<T> {
  const { config } = parts
  try {
    const store = await openStore(config.store)
    try {
      return await withDatabase(parts, async (database) => use(database, store, await readRegionRow(database, config)))
    } finally {
      await store.close()
    }
  } catch (error) {
    throw error instanceof StoreUnavailable ? new CommandFailure(EXIT.unavailable, error.message) : error
  }
}

async function readRegionRow(
  { db }: Database,
  config: Pick<ApiConfig, 'store'>,
): Promise<Selectable<Tables['region']>> {
  const region = await db.selectFrom('region').selectAll().executeTakeFirst()
  if (region === undefined) throw new CommandFailure(1, 'the database has no region yet: imds-api apply FILE makes it')
  const fault = regionFault(config, region.name, 'the database is of the region')
  if (fault !== undefined) throw new CommandFailure(EXIT.badConfig, fault)
  return region
}
