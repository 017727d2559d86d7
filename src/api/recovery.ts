/** The commands for backups: `backup`, `restore` and `advance`. Each returns its exit status. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createReadStream, openSync } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { EXIT } from '../runtime/exit-status.ts'
import { Failure } from './failure.ts'
import type { Output } from '../runtime/output.ts'
import { openStore } from '../store/open.ts'
import { StoreUnavailable, type Publisher } from '../store/publisher.ts'
import type { StoreSettings } from '../store/settings.ts'
import { linesOf, replaceFile } from './database/backup-file.ts'
import type { ApiConfig } from './config.ts'
import { advance, catchUpWith, lastEventAt } from './changes/advance.ts'
import { backupLines } from './database/backup.ts'
import { compareMigrations, migrate } from './database/migrate.ts'
import { databaseExists, type Database, type DatabaseSettings } from './database/open.ts'
import { BackupFault, parseHeader, restoreLines } from './database/restore.ts'
import { inTransaction } from './database/transaction.ts'
import { formatForeign, renewClaim } from './publish/claimed-store.ts'
import { surveyStore } from './publish/survey.ts'

/**
 * What a command needs. `open`: opens the database; from then on this may be another user than root, so what only root
 * may read is read before.
 */
export interface RecoveryParts {
  readonly config: Pick<ApiConfig, 'store' | 'database'>
  readonly output: Output
  readonly open: (settings: DatabaseSettings) => Promise<Database>
}

/** What `advance` and `restore` can be told. `force`: the store may have the region of another database. */
export interface TakeOverOptions {
  readonly force?: boolean
}

/** Moves the database past the store, makes the region in the store its own, and prints what it moved. */
export async function advanceDatabase(parts: RecoveryParts, { force = false }: TakeOverOptions): Promise<number> {
  const { config, output, open } = parts
  return withStore(config.store, async (store) => {
    const survey = await surveyStore(store)
    const database = await open(config.database)
    try {
      await migrate(database.db)
      await refuseForeign(store, await ownId(database), force ? undefined : 'advance --force')
      const { lines, at } = await inTransaction(database.db, async (tx) => {
        const moved = { lines: await advance(tx, survey), at: await lastEventAt(tx) }
        await renewClaim(tx, store)
        return moved
      })
      output.print(lines.length === 0 ? 'nothing had to be moved' : lines.join('\n'))
      output.warn(
        'if this database was restored: secrets, API clients and applications that were replaced or revoked after ' +
          `${at === undefined ? 'the backup' : `its last event (${at.toISOString()})`} are valid again, and so are tokens ` +
          'and sign-ins that were ended: replace or revoke them again before you start imds-api',
      )
      return reportUnreadable(output, survey.unreadable)
    } finally {
      await database.close()
    }
  })
}

/**
 * Writes a backup to standard output (`-`), or into a file. A file is written by a child process of this program, which
 * becomes the owner of the database's directory, while the file is in a directory of the user who runs the command.
 * `options`: those of the child.
 */
export async function backup(parts: RecoveryParts, file: string, options: readonly string[]): Promise<number> {
  if (!databaseExists(parts.config.database)) throw noDatabase()
  if (file === '-') return backupToOutput(parts)
  await replaceFile(file, async (fd) => {
    const child = spawn(process.execPath, [...process.execArgv, process.argv[1]!, ...options, 'backup', '-'], {
      stdio: ['ignore', fd, 'inherit'],
    })
    await once(child, 'close')
    if (child.exitCode !== 0) throw new Failure(child.exitCode ?? 1, `${file} is not written`)
  })
  return EXIT.done
}

async function backupToOutput({ config, open }: RecoveryParts): Promise<number> {
  const database = await open(config.database)
  try {
    const { missing, unknown } = await compareMigrations(database.db)
    if (unknown.length > 0)
      throw new Failure(
        1,
        `the database is of a later version of imds-api (it has ${unknown.join(', ')}): use that version`,
      )
    if (missing.length > 0)
      throw new Failure(
        1,
        `the database is of an earlier version of imds-api (without ${missing.join(', ')}): use that version, or ` +
          'start this one once',
      )
    await pipeline(Readable.from(backupLines(database.db)), process.stdout, { end: false }).catch((error: unknown) => {
      const { syscall, message } = error as NodeJS.ErrnoException
      throw syscall === 'write' ? new Failure(EXIT.outputLost, `the backup cannot be written: ${message}`) : error
    })
    return EXIT.done
  } finally {
    await database.close()
  }
}

/** Reads a backup from a file or standard input (`-`) into an empty database, and moves the database past the store. */
export async function restore(parts: RecoveryParts, file: string, { force = false }: TakeOverOptions): Promise<number> {
  const { config, output, open } = parts
  const lines = linesOf(file === '-' ? process.stdin : createReadStream('', { fd: openSync(file, 'r') }))
  try {
    const header = await lines.next()
    const first = header.done === true ? '' : header.value
    const { region, database: id, created } = parseHeader(first)
    if (config.store.region !== undefined && config.store.region !== region)
      throw new Failure(
        EXIT.badConfig,
        `IMDS_REGION is ${config.store.region}, and ${file} is of the region ${region}: correct IMDS_REGION`,
      )
    return await withStore(config.store, async (store) => {
      await refuseForeign(store, id, force ? undefined : 'restore --force FILE')
      const survey = await surveyStore(store)
      const database = await open(config.database)
      try {
        const restored = await restoreLines(database.db, first, lines, async (tx) => {
          const moved = await catchUpWith(survey)(tx)
          await renewClaim(tx, store)
          return moved
        })
        output.print([`the region ${region} as of ${created}:`, ...restored].join('\n'))
        output.warn(
          `secrets, API clients and applications that were replaced or revoked after ${created} are valid again: ` +
            'replace or revoke them again before you start imds-api',
        )
        return reportUnreadable(output, survey.unreadable)
      } finally {
        await database.close()
      }
    })
  } catch (error) {
    throw error instanceof BackupFault ? new Failure(EXIT.badData, `${file} ${error.message}`) : error
  }
}

/** The failure of a command that needs a database where there is none. */
export function noDatabase(): Failure {
  return new Failure(1, 'there is no embedded database yet in IMDS_API_STATE_DIR: imds-api apply FILE creates it')
}

/** The id of the database. */
async function ownId({ db }: Pick<Database, 'db'>): Promise<string> {
  const region = await db.selectFrom('region').select('database_id').executeTakeFirst()
  if (region === undefined) throw new Failure(1, 'the database has no region yet: imds-api apply FILE makes it')
  return region.database_id
}

/** Refuses a store that has the region of another database. `command`: what takes it over; undefined: it may have. */
export async function refuseForeign(store: Publisher, ours: string, command: string | undefined): Promise<void> {
  const claimed = await store.fleet.database()
  if (claimed !== undefined && claimed !== ours && command !== undefined)
    throw new Failure(1, formatForeign(claimed, ours, command))
}

/** Opens the store, before the database, since this may be another user than root from then on. */
async function withStore(settings: StoreSettings, use: (store: Publisher) => Promise<number>): Promise<number> {
  try {
    const store = await openStore(settings)
    return await use(store).finally(() => store.close())
  } catch (error) {
    throw error instanceof StoreUnavailable ? new Failure(EXIT.unavailable, error.message) : error
  }
}

/** Warns of records that could not be read, and returns the exit status. */
function reportUnreadable(output: Output, ids: readonly string[]): number {
  for (const id of ids)
    output.warn(
      `the record of ${id} cannot be read: its MAC address and its cloud IPs may be given to others. Publish or ` +
        'remove it, and run imds-api advance',
    )
  return ids.length === 0 ? EXIT.done : 1
}
