/**
 * A backup of the database: all rows of our tables as lines of JSON, from one snapshot of the database. The npm package
 * of the embedded server has no pg_dump, and Debian's may be too old for it.
 *
 *   {"format": "imds-api backup", "version": 1, "imds": "...", "migrations": [...], "region": "gb1",
 *    "database": "...", "created": "..."}
 *   {"table": "servers", "columns": ["id", ...]}
 *   ["srv-6ilgo", ...]                              a row: each value as PostgreSQL's text, or null
 *   {"sequences": {"ids_srv": "12", ...}}           the last number that each has given, or 0
 *   {"rows": 1234, "sha256": "..."}                 the number of rows, and the digest of all lines before this one
 *
 * It leaves out sign-ins and access tokens, because one that was ended after the backup must not be valid again, and
 * the outbox, because a restore publishes every server. It leaves out the addresses of clients and users too: a file
 * that is kept for years should have no personal data that a region does not need. For the same reason it leaves out
 * the recorded responses of keys, which end after a day, and events, which end after a week.
 */
import { createHash } from 'node:crypto'
import { sql } from 'kysely'
import { VERSION } from '../../runtime/version.ts'
import { appliedMigrations } from './migrate.ts'
import { TABLES } from './tables.ts'
import type { Tx, Reader } from './transaction.ts'

/** The value of `format` in the first line. */
export const FORMAT = 'imds-api backup'
export const FORMAT_VERSION = 1
/** The tables that a backup has. */
export const KEPT_TABLES: readonly string[] = TABLES.filter(
  (table) =>
    ![
      ...['access_tokens', 'refresh_tokens', 'token_families', 'known_addresses', 'outbox', 'idempotency_keys'],
      ...['event_feeds', 'events'],
    ].includes(table),
)

/** What one fetch returns at most, at least one row: so the memory stays within some MiB. */
const FETCH_ROWS = 1_000
const FETCH_BYTES = 1 << 20

/** The lines of a backup, in pieces. Each piece ends with a line feed. Rejects if the database has no region. */
export async function* backupLines(database: Reader): AsyncGenerator<string> {
  const tx = await database.startTransaction().setIsolationLevel('repeatable read').setAccessMode('read only').execute()
  const hash = createHash('sha256')
  const hashed = (text: string) => {
    hash.update(text)
    return text
  }
  let rows = 0
  try {
    // Texts that any other server reads as the same values.
    await sql`
      select set_config('timezone', 'UTC', true),
        set_config('datestyle', 'ISO', true),
        set_config('bytea_output', 'hex', true)`.execute(tx)
    const region = await tx.selectFrom('region').select(['name', 'database_id']).executeTakeFirst()
    if (region === undefined) throw new Error('the database has no region: there is nothing to back up')
    const made = {
      imds: VERSION,
      migrations: await appliedMigrations(tx),
      region: region.name,
      database: region.database_id,
      created: new Date().toISOString(),
    }
    const header = { format: FORMAT, version: FORMAT_VERSION, ...made }
    yield hashed(`${JSON.stringify(header)}\n`)
    for (const table of KEPT_TABLES) {
      const columns = (await columnsOf(tx, table)).map(({ name }) => name)
      yield hashed(`${JSON.stringify({ table, columns })}\n`)
      for await (const lines of rowsOf(tx, table, columns)) {
        rows += lines.length
        yield hashed(lines.map((line) => `${line}\n`).join(''))
      }
    }
    // after the rows: sequences are in no transaction
    yield hashed(`${JSON.stringify({ sequences: await lastNumbers(tx) })}\n`)
    yield `${JSON.stringify({ rows, sha256: hash.digest('hex') })}\n`
  } finally {
    await tx.rollback().execute()
  }
}

async function* rowsOf(tx: Tx, table: string, columns: readonly string[]): AsyncGenerator<readonly string[]> {
  const values = sql.join(columns.map((column) => sql`${sql.ref(column)}::text`))
  await sql`
    declare backup_rows no scroll cursor for
    select json_build_array(${values})::text as line from ${sql.table(table)}`.execute(tx)
  const { rows: lengths } = await sql<{ longest: number }>`
    select coalesce(max(octet_length(kept::text)), 1) as longest from ${sql.table(table)} as kept`.execute(tx)
  const count = Math.min(FETCH_ROWS, Math.max(1, Math.floor(FETCH_BYTES / lengths[0]!.longest)))
  for (;;) {
    const { rows } = await sql<{ line: string }>`fetch ${sql.lit(count)} from backup_rows`.execute(tx)
    if (rows.length > 0) yield rows.map(({ line }) => line)
    if (rows.length < count) break
  }
  await sql`close backup_rows`.execute(tx)
}

interface Column {
  readonly name: string
  readonly type: string
}

/** The columns of a table that are written, with their types, in their order. None: there is no such table. */
export async function columnsOf(database: Reader, table: string): Promise<readonly Column[]> {
  const { rows } = await sql<Column>`
    select attname as name, format_type(atttypid, atttypmod) as type from pg_attribute
    where attrelid = to_regclass(quote_ident(${table})) and attnum > 0 and not attisdropped and attgenerated = ''
    order by attnum`.execute(database)
  return rows
}

/** The last number of each sequence of ours; 0: it has given none. */
async function lastNumbers(tx: Tx): Promise<Readonly<Record<string, string>>> {
  const { rows } = await sql<{ name: string; last: string }>`
    select sequencename as name, coalesce(last_value, 0)::text as last from pg_sequences
    where schemaname = current_schema() and (starts_with(sequencename, 'ids_') or exists (
      select from unnest(${[...TABLES]}::text[]) as own(name) where starts_with(sequencename, own.name || '_')
    ))`.execute(tx)
  return Object.fromEntries(rows.map(({ name, last }) => [name, last]))
}
