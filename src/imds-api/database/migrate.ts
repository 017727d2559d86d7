/**
 * Brings the tables to the version of this program. Kysely holds an advisory lock during a migration, so two processes
 * that start together do not collide.
 *
 * Programs of two versions may use one database, so that processes are upgraded one after another: a migration says
 * which programs work with the tables after it, and the database keeps that (CONTRIBUTING.md#migrations).
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { Migrator } from 'kysely/migration'
import { StartFailure } from '../../runtime/listen.ts'
import { MIGRATIONS, type TableChanges } from './migrations.ts'
import { codeOf, isRepeatable, type Db } from './transaction.ts'

/**
 * How the database compares with this program. `unknown`: migrations of a later version. `unsupported`: those among
 * them after which this program does not work.
 */
export interface MigrationComparison {
  readonly missing: readonly string[]
  readonly unknown: readonly string[]
  readonly unsupported: readonly string[]
}

/**
 * How long a migration waits for a table, and then pauses: requests that need the table wait behind it. A request that
 * has this table, and waits for one that the migration has, is a deadlock. The migration has to give way: after
 * PostgreSQL's deadlock_timeout (1 s), the request would fail. A pg_dump uses all tables for as long as it takes.
 */
const [LOCK_TIMEOUT_MS, LOCK_PAUSE_MS, LOCK_TRIES] = [200, 800, 300]
const LOCK_NOT_AVAILABLE = '55P03'
const INSUFFICIENT_PRIVILEGE = '42501'

export async function compareMigrations(db: Db, changes = MIGRATIONS): Promise<MigrationComparison> {
  const applied = await appliedMigrations(db)
  const isKnown = (name: string) => Object.hasOwn(changes, name)
  const unknown = applied.filter((name) => !isKnown(name))
  const supported =
    unknown.length === 0 ? [] : await db.$extendTables<OwnTables>().selectFrom('compatibility').selectAll().execute()
  return {
    missing: Object.keys(changes).filter((name) => !applied.includes(name)),
    unknown,
    unsupported: unknown.filter(
      (name) => !supported.some(({ migration, oldest }) => migration === name && isKnown(oldest)),
    ),
  }
}

/** The names of the migrations that a database has, in order. None: it has no tables. */
async function appliedMigrations(db: Db): Promise<readonly string[]> {
  const { rows: tables } = await sql`select where to_regclass('kysely_migration') is not null`.execute(db)
  if (tables.length === 0) return []
  const reading = db.$extendTables<OwnTables>().selectFrom('kysely_migration').select('name').orderBy('name').execute()
  const rows = await reading.catch((error: unknown) => {
    throw withRemedy(error)
  })
  return rows.map(({ name }) => name)
}

/** The tables of migrations themselves. */
type OwnTables = Readonly<{
  kysely_migration: { name: string; timestamp: string }
  compatibility: { migration: string; oldest: string }
}>

/**
 * Applies the missing migrations: all or none. Rejects if the database is of a later version that this program does not
 * work with.
 */
export async function migrate(db: Db, changes = MIGRATIONS): Promise<void> {
  const { missing, unknown, unsupported } = await compareMigrations(db, changes)
  if (unsupported.length > 0 || (unknown.length > 0 && missing.length > 0))
    throw new StartFailure(
      `the database is of a later version of imds-api, with which this one does not work (it has ${unknown.join(', ')}): ` +
        'upgrade imds-api',
    )
  if (missing.length > 0) await migrateTo(db, changes) // without: Kysely reads the whole catalog
}

async function migrateTo(db: Db, changes: TableChanges): Promise<void> {
  const migrations = Object.fromEntries(
    Object.entries(changes).map(([migration, { up, oldest }]) => [
      migration,
      {
        up: async (tx: Db) => {
          await sql`set local lock_timeout = ${sql.lit(LOCK_TIMEOUT_MS)}`.execute(tx)
          await up(tx)
          await tx.$extendTables<OwnTables>().insertInto('compatibility').values({ migration, oldest }).execute()
        },
      },
    ]),
  )
  const migrator = new Migrator({ db, provider: { getMigrations: () => Promise.resolve(migrations) } })
  for (let tries = 1; ; tries++) {
    const { error } = await migrator.migrateToLatest()
    if (error === undefined) return
    if (codeOf(error) !== LOCK_NOT_AVAILABLE && !isRepeatable(error)) throw withRemedy(error)
    if (tries === LOCK_TRIES)
      throw new StartFailure(
        'the tables cannot be changed, since a transaction uses them for minutes: end it, such as a pg_dump, ' +
          'and start imds-api again',
        { cause: error },
      )
    await sleep(LOCK_PAUSE_MS)
  }
}

/** A restore as another user of PostgreSQL leaves tables of that user. */
function withRemedy(error: unknown): Error {
  if (!(error instanceof Error)) return new Error('the migration failed', { cause: error })
  if (codeOf(error) !== INSUFFICIENT_PRIVILEGE) return error
  return new StartFailure(
    `${error.message}: the user in IMDS_API_DATABASE must own the database and its tables. ` +
      'An empty one: alter database NAME owner to USER. A restored one: drop it, and repeat the restore with ' +
      'createdb --owner and pg_restore --role (docs/operations/imds-api.md#backups-of-imds-api)',
    { cause: error },
  )
}
