/** Brings one table to the rows of the region file: inserts, updates, and with `prune` deletes. */
import { sql, type InsertObject, type RawBuilder } from 'kysely'
import { addRow } from '../changes/own-rows.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import { changedColumns, describeChanges, type Row } from './difference.ts'
import type { RegionRows } from './rows.ts'
import { TABLE_RULES, type CurrentRow, type RegionTable, type TableRule, type WantedRow } from './tables.ts'

/** A row that was inserted or changed. `columns`: those that were changed. `line`: for people, without secrets. */
export interface RowChange {
  readonly table: RegionTable
  readonly key: string
  readonly columns: readonly string[]
  readonly line: string
}

/** A row that cannot be deleted because others refer to it. */
export class RowInUse extends Error {}

const FOREIGN_KEY_VIOLATION = '23503'
const UNIQUE_VIOLATION = '23505'

/** Inserts the rows that are missing, and updates those that differ. */
export async function applyTable<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  rows: RegionRows[Name],
): Promise<readonly RowChange[]> {
  const rule: TableRule<Name> = TABLE_RULES[table]
  const present = new Map((await currentRows(tx, table)).map((row) => [keyOf(rule, row), row]))
  const changes: RowChange[] = []
  for (const wanted of rows) {
    const key = keyOf(rule, wanted)
    const name = `${label(table)} ${rule.name === undefined ? key : String(wanted[rule.name])}`
    const current = present.get(key)
    if (current === undefined) {
      await namingConflict(addRow(tx, table, wanted as InsertObject<Tables, Name>), name)
      changes.push({ table, key, columns: [], line: `+ ${name}` })
      continue
    }
    const columns = changedColumns(wanted, current, rule.keptColumns?.(wanted, current) ?? [])
    if (columns.length === 0) continue
    const values = pick(wanted, columns)
    if (Object.hasOwn(current, 'updated_at')) values['updated_at'] = new Date()
    await namingConflict(updateRow(tx, table, rule, current, values), name)
    changes.push({ table, key, columns, line: `~ ${name}: ${describeChanges(columns, current, wanted)}` })
  }
  return changes
}

/** Deletes the rows that the file does not have, or hides them. Returns the lines of the difference. */
export async function pruneTable<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  rows: RegionRows[Name],
  given: ReadonlySet<string>,
): Promise<readonly string[]> {
  const rule: TableRule<Name> = TABLE_RULES[table]
  const kept = new Set(rows.map((row) => keyOf(rule, row)))
  const lines: string[] = []
  for (const row of await currentRows(tx, table)) {
    const key = keyOf(rule, row)
    if (kept.has(key) || rule.isPruned?.(row, given) === false) continue
    if (rule.hiding !== undefined && (await isShownWithDeleted(tx, table, rule, row))) {
      if (rule.hiding.isHidden(row)) continue
      await updateRow(tx, table, rule, row, rule.hiding.values())
    } else lines.push(...(await deleteRow(tx, table, rule, row)))
    lines.push(`- ${label(table)} ${key}`)
  }
  return lines
}

/**
 * True if only deleted servers and hidden hypervisors refer to a row, so it must stay. Locks it, so that no new server
 * uses it before the commit.
 */
async function isShownWithDeleted<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  rule: TableRule<Name>,
  row: CurrentRow<Name>,
): Promise<boolean> {
  await sql`select from ${sql.table(table)} where ${hasKeyOf(rule, row)} for update`.execute(tx)
  const { rows } = await rule.hiding!.references(keyOf(rule, row)).execute(tx)
  return rows.length > 0 && !rows.some(({ is_alive }) => is_alive)
}

/** Deletes a row with its parts, and returns the lines of the parts. Rejects with RowInUse if it is referred to. */
async function deleteRow<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  rule: TableRule<Name>,
  row: CurrentRow<Name>,
): Promise<readonly string[]> {
  try {
    const lines = (await rule.deleteParts?.(tx, row)) ?? []
    await sql`delete from ${sql.table(table)} where ${hasKeyOf(rule, row)}`.execute(tx)
    return lines
  } catch (error) {
    if ((error as { code?: string }).code !== FOREIGN_KEY_VIOLATION) throw error
    throw new RowInUse(`${label(table)} ${keyOf(rule, row)} is in use and cannot be deleted: nothing was changed`, {
      cause: error,
    })
  }
}

/**
 * Waits for an insert or update of the row `name`. Rejects with the remedy where another row has a value that only one
 * may have, such as a handle.
 */
async function namingConflict(write: Promise<void>, name: string): Promise<void> {
  await write.catch((error: unknown) => {
    const { code, detail = '' } = error as { readonly code?: string; readonly detail?: string }
    if (code !== UNIQUE_VIOLATION) throw error
    throw new Error(
      `${name}: another row of the database has the same value (${detail}): ` +
        'first apply a file in which that row has another value, or --prune it. Nothing was changed',
      { cause: error },
    )
  })
}

async function currentRows<Name extends RegionTable>(tx: Tx, table: Name): Promise<readonly CurrentRow<Name>[]> {
  return (await sql<CurrentRow<Name>>`select * from ${sql.table(table)}`.execute(tx)).rows
}

async function updateRow<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  rule: TableRule<Name>,
  row: CurrentRow<Name>,
  values: object,
): Promise<void> {
  await sql`update ${sql.table(table)} set ${sql.join(equations(values))} where ${hasKeyOf(rule, row)}`.execute(tx)
}

/** True for the row with the key of this one. */
function hasKeyOf<Name extends RegionTable>({ key }: TableRule<Name>, row: CurrentRow<Name>): RawBuilder<unknown> {
  return sql.join(equations(pick(row, key)), sql` and `)
}

function equations(row: object): readonly RawBuilder<unknown>[] {
  return Object.entries(row).map(([column, value]) => sql`${sql.ref(column)} = ${value}`)
}

function pick(row: Row, columns: readonly string[]): Record<string, unknown> {
  return Object.fromEntries(columns.map((column) => [column, row[column]]))
}

function keyOf<Name extends RegionTable>({ key }: TableRule<Name>, row: WantedRow<Name> | CurrentRow<Name>): string {
  return Object.values(pick(row, key)).map(String).join(' ')
}

function label(table: RegionTable): string {
  return table.replace(/s$/, '').replaceAll('_', ' ')
}
