/** Brings one table to the rows of the region file: inserts, updates and removes. */
import { sql, type InsertObject, type RawBuilder } from 'kysely'
import { CommandFailure, EXIT } from '../../runtime/exit-status.ts'
import { addRow } from '../changes/own-rows.ts'
import type { Tables } from '../database/tables.ts'
import { codeOf, type Tx } from '../database/transaction.ts'
import { changedColumns, describeChanges, type Row } from './difference.ts'
import type { RemovedKeys } from './removed.ts'
import type { RegionRows } from './rows.ts'
import { TABLE_RULES, type CurrentRow, type RegionTable, type TableRule, type WantedRow } from './tables.ts'

/** A row that was inserted or changed. `columns`: those that were changed. `line`: for people, without secrets. */
export interface RowChange {
  readonly table: RegionTable
  readonly key: string
  readonly columns: readonly string[]
  readonly line: string
}

/** A row that cannot be removed because others refer to it. */
export class RowInUse extends Error {
  constructor(table: RegionTable, key: string) {
    super(`${label(table)} ${key} is in use and cannot be removed: nothing was changed`)
  }
}

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
  const seen = new Set<string>()
  for (const wanted of rows) {
    const key = keyOf(rule, wanted)
    if (seen.has(key)) throw new CommandFailure(EXIT.badConfig, `${label(table)} ${key} is given twice`)
    seen.add(key)
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

/** Removes the rows with these keys, in one table. Returns the lines of the difference. Rejects with RowInUse. */
export async function removeRows<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  keys: RemovedKeys[Name] = [],
): Promise<readonly string[]> {
  const rule: TableRule<Name> = TABLE_RULES[table]
  const rows = (await currentRows(tx, table)).filter((row) => keys.includes(keyOf(rule, row)))
  const lines: string[] = []
  for (const row of rows) {
    const key = keyOf(rule, row)
    if (rule.usedBy === undefined) await deleteRow(tx, table, rule, row)
    else if (isRemoved(row)) continue
    else {
      // locked, so that no new server uses it before the commit
      await sql`select from ${sql.table(table)} where ${hasKeyOf(rule, row)} for update`.execute(tx)
      if ((await rule.usedBy(key).execute(tx)).rows.length > 0) throw new RowInUse(table, key)
      const values = table === 'images' ? { status: 'deleted', handle: null } : { removed_at: new Date() }
      await updateRow(tx, table, rule, row, values)
    }
    lines.push(`- ${label(table)} ${key}`)
  }
  return lines
}

function isRemoved(row: Row): boolean {
  return row['status'] === 'deleted' || (row['removed_at'] ?? undefined) !== undefined
}

async function deleteRow<Name extends RegionTable>(
  tx: Tx,
  table: Name,
  rule: TableRule<Name>,
  row: CurrentRow<Name>,
): Promise<void> {
  try {
    await sql`delete from ${sql.table(table)} where ${hasKeyOf(rule, row)}`.execute(tx)
  } catch (error) {
    throw codeOf(error) === FOREIGN_KEY_VIOLATION ? new RowInUse(table, keyOf(rule, row)) : error
  }
}

/**
 * Waits for an insert or update of the row `name`. Rejects with what PostgreSQL says where it refers to a row that does
 * not exist, or another row has a value that only one may have, such as a handle.
 */
async function namingConflict(write: Promise<void>, name: string): Promise<void> {
  await write.catch((error: unknown) => {
    const { code = '', detail = '' } = error as { readonly code?: string; readonly detail?: string }
    if (code !== UNIQUE_VIOLATION && code !== FOREIGN_KEY_VIOLATION) throw error
    const remedy = code === UNIQUE_VIOLATION ? ' First apply a file in which the other row has another value.' : ''
    throw new CommandFailure(EXIT.badConfig, `${name}: ${detail}${remedy} Nothing was changed`)
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
