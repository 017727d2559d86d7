/** Reads and writes single rows, most of them of the resources of an account. */
import { sql, type InsertObject, type RawBuilder, type Selectable, type Updateable } from 'kysely'
import type { Tables } from '../database/tables.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { noSuch } from '../model/refusal.ts'
import { ROWS } from '../model/resources.ts'

type AccountTable = { [T in keyof Tables]: Tables[T] extends { account_id: string } ? T : never }[keyof Tables]
/** The resources that belong to an account. */
type Name = {
  [N in keyof typeof ROWS]: (typeof ROWS)[N] extends { readonly table: AccountTable } ? N : never
}[keyof typeof ROWS]
export type OwnRow<T extends Name> = Selectable<Tables[(typeof ROWS)[T]['table']]>

/** Locks a row of an account until the end of the transaction. Undefined: the account has none with this id. */
export async function findLocked<T extends Name>(
  tx: Tx,
  name: T,
  accountId: string,
  id: string,
): Promise<OwnRow<T> | undefined> {
  const { rows } = await sql<OwnRow<T>>`
    select * from ${sql.table(ROWS[name].table)} where id = ${id} and account_id = ${accountId} for no key update`.execute(
    tx,
  )
  return rows[0]
}

/** The same. Refuses if there is none. */
export async function lockRow<T extends Name>(tx: Tx, name: T, accountId: string, id: string): Promise<OwnRow<T>> {
  const row = await findLocked(tx, name, accountId, id)
  if (row === undefined) throw noSuch(ROWS[name].kind, id)
  return row
}

/** True for the row with this id or handle. */
export function isNamed(name: string): RawBuilder<boolean> {
  return sql`(id = ${name} or handle = ${name})`
}

export async function addRow<T extends keyof Tables>(db: Db, table: T, row: InsertObject<Tables, T>): Promise<void> {
  await db.insertInto(table).values(row).execute()
}

/** Writes the values that are not undefined to a row. */
export async function setValues<T extends keyof Tables>(
  tx: Tx,
  table: T,
  id: string | number,
  values: Updateable<Tables[T]>,
): Promise<void> {
  const set = Object.entries(values)
    .filter(([, value]) => value !== undefined)
    .map(([column, value]) => sql`${sql.ref(column)} = ${value}`)
  if (set.length > 0) await sql`update ${sql.table(table)} set ${sql.join(set)} where id = ${id}`.execute(tx)
}
