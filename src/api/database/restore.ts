/**
 * Restores a backup (backup.ts) into an empty database, in one transaction: the tables as they were at the backup, its
 * rows, the later migrations, and what the caller adds. So a damaged backup, a full disk or a kill leaves an empty
 * database.
 */
import { createHash } from 'node:crypto'
import { sql, type Kysely } from 'kysely'
import { VERSION } from '../../runtime/version.ts'
import { columnsOf, FORMAT, FORMAT_VERSION, KEPT_TABLES } from './backup.ts'
import { TABLES_WITH_EVENTS } from './migrations/events.ts'
import { applyMigrations, appliedMigrations, makeMigrationTables, MIGRATIONS } from './migrate.ts'
import { TABLES, type Tables } from './tables.ts'
import type { Tx } from './transaction.ts'

/** The first line of a backup. `database`: the id of the database. `created`: when it was made. */
export interface BackupHeader {
  readonly imds: string
  readonly migrations: readonly string[]
  readonly region: string
  readonly database: string
  readonly created: string
}
/** Why a backup cannot be restored. The message is for operators. */
export class BackupFault extends Error {}

/** Rows that are written with one statement, at least one. */
const BATCH_BYTES = 1 << 20
/**
 * How many numbers of a sequence are skipped: ids that were given after the backup, and that the store does not show
 * (config maps, API clients). Agents of the compute system recognise an action by its number, and would take a new one
 * with an old number for done.
 */
const [SKIPPED_IDS, SKIPPED_ACTIONS] = [10_000, 1_000_000]

/** Checks the first line of a backup. Throws a BackupFault. */
export function parseHeader(line: string): BackupHeader {
  const header = parseLine(line) as Partial<BackupHeader & Record<'format' | 'version', unknown>> | undefined
  if (header?.format !== FORMAT) throw new BackupFault('is not a backup of imds-api')
  const { version, imds = '', migrations = [], region = '', database = '', created = '' } = header
  const unknown = migrations.filter((name, i) => Object.keys(MIGRATIONS)[i] !== name)
  if (version !== FORMAT_VERSION || unknown.length > 0) {
    const reason = unknown.length > 0 ? `, which does not know ${unknown.join(', ')}` : ''
    throw new BackupFault(
      `is of imds-api ${imds}, and this is ${VERSION}${reason}: ` +
        'restore it with a version of imds-api that is not older',
    )
  }
  return { imds, migrations, region, database, created }
}

/**
 * Restores a backup: its header (`first`) and the lines after it. Returns lines that say what was restored and moved.
 * `finish`: changes what has to follow, in the same transaction. Rejects with a BackupFault if the database is not
 * empty or the backup is not whole.
 */
export async function restoreLines(
  database: Kysely<Tables>,
  first: string,
  lines: AsyncIterable<string>,
  finish: (tx: Tx) => Promise<readonly string[]>,
): Promise<readonly string[]> {
  const { migrations } = parseHeader(first)
  await makeMigrationTables(database)
  let result: readonly string[] = []
  await database.transaction().execute(async (tx) => {
    // once: the lines cannot be read again
    await sql`lock table kysely_migration in exclusive mode`.execute(tx) // no start and no other restore meanwhile
    await prepareTables(tx, migrations)
    const constraints = await dropForeignKeys(tx)
    await setTriggers(tx, 'disable') // its rows are no changes
    const rows = await load(tx, first, lines)
    await setTriggers(tx, 'enable')
    for (const { table, name, definition } of constraints)
      await sql`alter table ${sql.table(table)} add constraint ${sql.ref(name)} ${sql.raw(definition)}`.execute(tx)
    await applyMigrations(tx)
    result = [`${String(rows)} rows are restored`, ...(await finish(tx))]
  })
  return result
}

/** Makes the tables as they were at the backup, unless the database has them already without any row. */
async function prepareTables(tx: Tx, migrations: readonly string[]): Promise<void> {
  const { rows: tables } = await sql<{ name: string }>`
    select relname as name from pg_class
    where relkind = 'r' and relnamespace = current_schema()::regnamespace
      and relname = any(${[...TABLES]}::text[])`.execute(tx)
  for (const { name } of tables) {
    const { rows } = await sql`select from ${sql.table(name)} limit 1`.execute(tx)
    if (rows.length > 0) throw notEmpty('is not empty')
  }
  const applied = await appliedMigrations(tx)
  if (tables.length === 0 && applied.length === 0) await applyMigrations(tx, migrations)
  else if (applied.join() !== migrations.join()) throw notEmpty('has tables of another version')
}

function notEmpty(reason: string): BackupFault {
  return new BackupFault(
    `cannot be restored: the database ${reason}. Name an empty one (IMDS_API_STATE_DIR or IMDS_API_DATABASE)`,
  )
}

/** A line that is no row. */
interface Part {
  readonly table?: string
  readonly columns?: readonly string[]
  readonly sequences?: Readonly<Record<string, string>>
  readonly rows?: number
  readonly sha256?: string
}
interface ForeignKey {
  readonly table: string
  readonly name: string
  readonly definition: string
}

/**
 * Drops the foreign keys, since servers and images refer to each other. They are made again, and checked, when all rows
 * are there.
 */
async function dropForeignKeys(tx: Tx): Promise<readonly ForeignKey[]> {
  const { rows } = await sql<ForeignKey>`
    select relname as table, conname as name, pg_get_constraintdef(pg_constraint.oid) as definition
    from pg_constraint join pg_class on pg_class.oid = conrelid
    where contype = 'f' and relnamespace = current_schema()::regnamespace
      and relname = any(${[...TABLES]}::text[])`.execute(tx)
  for (const { table, name } of rows)
    await sql`alter table ${sql.table(table)} drop constraint ${sql.ref(name)}`.execute(tx)
  return rows
}

async function setTriggers(tx: Tx, state: 'enable' | 'disable'): Promise<void> {
  for (const table of TABLES_WITH_EVENTS)
    await sql`alter table ${sql.table(table)} ${sql.raw(state)} trigger user`.execute(tx)
}

/** Writes all rows and sequences. Returns the number of rows. */
async function load(tx: Tx, first: string, lines: AsyncIterable<string>): Promise<number> {
  const hash = createHash('sha256').update(`${first}\n`)
  let rows = 0
  let insert: ((batch: readonly string[]) => Promise<void>) | undefined
  let batch: string[] = []
  let bytes = 0
  const flush = async () => {
    if (batch.length > 0) await insert?.(batch)
    rows += batch.length
    ;[batch, bytes] = [[], 0]
  }
  for await (const line of lines) {
    if (line.startsWith('[')) {
      if (insert === undefined) throw damaged()
      batch.push(line)
      bytes += line.length
      if (bytes >= BATCH_BYTES) await flush()
    } else {
      await flush()
      const part = parseLine(line) as Part | undefined
      if (part?.sha256 !== undefined) {
        if (part.sha256 !== hash.digest('hex') || part.rows !== rows) throw damaged()
        return rows
      }
      if (part?.table !== undefined) insert = await insertInto(tx, part.table, part.columns ?? [])
      else if (part?.sequences !== undefined) await setSequences(tx, part.sequences)
      else throw damaged()
    }
    hash.update(`${line}\n`)
  }
  throw new BackupFault('is not whole: its end is missing. Copy it again, or take an older one')
}

/** Returns a function that writes rows of one table. */
async function insertInto(
  tx: Tx,
  table: string,
  columns: readonly string[],
): Promise<(batch: readonly string[]) => Promise<void>> {
  const types = new Map((await columnsOf(tx, table)).map(({ name, type }) => [name, type]))
  if (!KEPT_TABLES.includes(table) || columns.some((column) => !types.has(column))) throw damaged()
  const names = sql.join(columns.map((column) => sql.ref(column)))
  const values = sql.join(columns.map((column, i) => sql`(line ->> ${sql.lit(i)})::${sql.raw(types.get(column)!)}`))
  return async (batch) => {
    await sql`
      insert into ${sql.table(table)} (${names}) overriding system value
      select ${values} from json_array_elements(${`[${batch.join()}]`}::json) as line`
      .execute(tx)
      .catch((error: unknown) => {
        if (/^(22|23)/.test((error as { code?: string }).code ?? '')) throw damaged(error)
        throw error
      })
  }
}

async function setSequences(tx: Tx, sequences: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, last] of Object.entries(sequences)) {
    const skipped = name.startsWith('ids_') ? SKIPPED_IDS : name.startsWith('compute_actions_') ? SKIPPED_ACTIONS : 0
    const number = Number(last) + skipped
    if (number > 0)
      await sql`
        select setval(oid::regclass, ${number}) from pg_class
        where relkind = 'S' and relname = ${name} and relnamespace = current_schema()::regnamespace`.execute(tx)
  }
}

function damaged(cause?: unknown): BackupFault {
  return new BackupFault('is damaged: its lines are not those that were written. Copy it again, or take an older one', {
    cause,
  })
}

function parseLine(line: string): unknown {
  try {
    const value: unknown = JSON.parse(line)
    return typeof value === 'object' && value !== null ? value : undefined
  } catch {
    return undefined
  }
}
