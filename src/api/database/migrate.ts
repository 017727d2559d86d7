/**
 * Brings the tables to the version of this program. Kysely holds an advisory lock meanwhile, so two processes that
 * start together do not collide.
 */
import { sql, type Kysely, type Transaction } from 'kysely'
import { Migrator, type Migration } from 'kysely/migration'
import { StartFailure } from '../../runtime/listen.ts'
import * as first from './migrations/0001-first.ts'
import type { Tables } from './tables.ts'

/** All migrations by their names, in order. A migration that was released is never changed. */
export const MIGRATIONS: Readonly<Record<string, Migration>> = { '0001-first': first }

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
    missing: Object.keys(MIGRATIONS).filter((name) => !applied.includes(name)),
    unknown: applied.filter((name) => !Object.hasOwn(MIGRATIONS, name)),
  }
}

/** The names of the migrations that a database has, in order. None: it has no tables. */
export async function appliedMigrations(database: Kysely<Tables>): Promise<readonly string[]> {
  const { rows: tables } = await sql`select where to_regclass('kysely_migration') is not null`.execute(database)
  if (tables.length === 0) return []
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
  if ((await appliedMigrations(database)).length === 0) await migrateTo(database, {})
}

/**
 * Applies those of these migrations that are missing, inside of a transaction, which must have locked kysely_migration.
 * For a restore.
 */
export async function applyMigrations(
  tx: Transaction<Tables>,
  names: readonly string[] = Object.keys(MIGRATIONS),
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
  if (missing.length > 0) await migrateTo(database, MIGRATIONS) // without: Kysely reads the whole catalog
}

async function migrateTo(database: Kysely<Tables>, migrations: Readonly<Record<string, Migration>>): Promise<void> {
  const migrator = new Migrator({ db: database, provider: { getMigrations: () => Promise.resolve(migrations) } })
  const { error } = await migrator.migrateToLatest()
  if (error !== undefined) throw error instanceof Error ? error : new Error('the migration failed', { cause: error })
}
