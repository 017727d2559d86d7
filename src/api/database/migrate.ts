/**
 * Brings the tables to the version of this program. Kysely holds an advisory lock meanwhile, so two processes that
 * start together do not collide.
 */
import { sql, type Kysely, type Transaction } from 'kysely'
import { Migrator, type Migration } from 'kysely/migration'
import { StartFailure } from '../../runtime/listen.ts'
import * as first from './migrations/0001-first.ts'
import * as wholeDocument from './migrations/0002-whole-document.ts'
import * as accountLimits from './migrations/0003-account-limits.ts'
import * as publishedImages from './migrations/0004-published-images.ts'
import * as publishedIds from './migrations/0005-published-ids.ts'
import * as outboxTurns from './migrations/0006-outbox-turns.ts'
import * as indexes from './migrations/0007-indexes.ts'
import * as freedAddresses from './migrations/0008-freed-addresses.ts'
import * as knownAddresses from './migrations/0009-known-addresses.ts'
import type { Tables } from './tables.ts'

/** In order. A migration that was released is never changed. */
const MIGRATIONS: Readonly<Record<string, Migration>> = {
  '0001-first': first,
  '0002-whole-document': wholeDocument,
  '0003-account-limits': accountLimits,
  '0004-published-images': publishedImages,
  '0005-published-ids': publishedIds,
  '0006-outbox-turns': outboxTurns,
  '0007-indexes': indexes,
  '0008-freed-addresses': freedAddresses,
  '0009-known-addresses': knownAddresses,
}

/** The names of all migrations, in order. */
export const MIGRATION_NAMES = Object.keys(MIGRATIONS)

/**
 * How the database compares with this program. `unknown`: migrations of a later version, which this one must not touch.
 */
export interface Comparison {
  readonly missing: readonly string[]
  readonly unknown: readonly string[]
}

/** Compares, and changes nothing. */
export async function compareMigrations(database: Kysely<Tables>): Promise<Comparison> {
  const applied = await appliedMigrations(database)
  return {
    missing: MIGRATION_NAMES.filter((name) => !applied.includes(name)),
    unknown: applied.filter((name) => !MIGRATION_NAMES.includes(name)),
  }
}

/** The names of the migrations that a database has, in order. None: it has no tables. */
export async function appliedMigrations(database: Kysely<Tables>): Promise<readonly string[]> {
  const {
    rows: [table],
  } = await sql<{ exists: boolean }>`select to_regclass('kysely_migration') is not null as exists`.execute(database)
  if (table?.exists !== true) return []
  const rows = await database
    .$extendTables<MigrationTable>()
    .selectFrom('kysely_migration')
    .select('name')
    .orderBy('name')
    .execute()
  return rows.map(({ name }) => name)
}

type MigrationTable = Readonly<Record<'kysely_migration', { name: string; timestamp: string }>>

/** Makes Kysely's own tables, for `applyMigrations`. */
export async function makeMigrationTables(database: Kysely<Tables>): Promise<void> {
  const { missing, unknown } = await compareMigrations(database)
  if (missing.length < MIGRATION_NAMES.length || unknown.length > 0) return // they are there
  const { error } = await new Migrator({
    db: database,
    provider: { getMigrations: () => Promise.resolve({}) },
  }).migrateToLatest()
  if (error !== undefined) throw error instanceof Error ? error : new Error('the migration failed', { cause: error })
}

/**
 * Applies those of these migrations that are missing, inside of a transaction, which must have locked kysely_migration.
 * For a restore.
 */
export async function applyMigrations(
  tx: Transaction<Tables>,
  names: readonly string[] = MIGRATION_NAMES,
): Promise<void> {
  const applied = await appliedMigrations(tx)
  for (const name of names.filter((one) => !applied.includes(one))) {
    await MIGRATIONS[name]!.up(tx)
    await tx
      .$extendTables<MigrationTable>()
      .insertInto('kysely_migration')
      .values({ name, timestamp: new Date().toISOString() })
      .execute()
  }
}

/** Applies the missing migrations, all or none. Rejects if the database is of a later version. */
export async function migrate(database: Kysely<Tables>): Promise<void> {
  const { missing, unknown } = await compareMigrations(database)
  if (unknown.length > 0)
    throw new StartFailure(
      `the database is of a later version of imds-api (it has ${unknown.join(', ')}): upgrade imds-api`,
    )
  if (missing.length === 0) return // Kysely would read the whole catalog
  const migrator = new Migrator({ db: database, provider: { getMigrations: () => Promise.resolve(MIGRATIONS) } })
  const { error } = await migrator.migrateToLatest()
  if (error !== undefined) throw error instanceof Error ? error : new Error('the migration failed', { cause: error })
}
