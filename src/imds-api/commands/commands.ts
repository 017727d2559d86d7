/** What the commands of imds-api share. */
import type { Selectable } from 'kysely'
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import type { Output } from '../../runtime/output.ts'
import { openStore } from '../../store/open.ts'
import { StoreUnavailable, type Publisher } from '../../store/publisher.ts'
import { regionFault, type ApiConfig } from '../service/config.ts'
import { migrate } from '../database/migrate.ts'
import { embeddedExists } from '../database/embedded.ts'
import type { Database } from '../database/open.ts'
import type { DatabaseSettings } from '../database/settings.ts'
import type { Tables } from '../database/tables.ts'

/**
 * What a command needs. `open`: opens the database, and may give up the rights of root: read what needs them before,
 * and open the store before.
 */
export interface CommandParts<Config extends Pick<ApiConfig, 'database'> = ApiConfig> {
  readonly config: Config
  readonly output: Output
  readonly open: (settings: DatabaseSettings) => Promise<Database>
}

/** Uses the database, which must exist, with the tables of this version. */
export async function withDatabase<T>(
  { config, open }: Pick<CommandParts<Pick<ApiConfig, 'database'>>, 'config' | 'open'>,
  use: (database: Database) => Promise<T>,
): Promise<T> {
  refuseMissingDatabase(config.database)
  const database = await open(config.database)
  try {
    await migrate(database.db)
    return await use(database)
  } finally {
    await database.close()
  }
}

/** Throws a CommandFailure if there is no database yet: only `apply` makes one. */
export function refuseMissingDatabase(settings: DatabaseSettings): void {
  if (settings.kind !== 'server' && !embeddedExists(settings.stateDirectory))
    throw new CommandFailure(
      1,
      'there is no embedded database yet in IMDS_API_STATE_DIR: imds-api apply FILE creates it',
    )
}

/**
 * Uses the store and the database, and the row of its region. Opens the store first: opening the database may give up
 * the rights of root. Rejects with a CommandFailure if the store is unavailable, or is that of another region.
 */
export async function withStoreAndDatabase<T>(
  parts: CommandParts<Pick<ApiConfig, 'store' | 'database'>>,
  use: (database: Database, store: Publisher, region: Selectable<Tables['region']>) => Promise<T>,
): Promise<T> {
  const { config } = parts
  refuseMissingDatabase(config.database)
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
