/**
 * Queries that each connection prepares once, because PostgreSQL plans most of them longer than it runs them; and among
 * them those that are built once, because building a query with its joins takes longer too. Their columns are listed
 * one by one, because a prepared `select *` fails once a later version adds a column.
 */
import { hash } from 'node:crypto'
import { CompiledQuery, sql } from 'kysely'
import type pg from 'pg'
import type { Db } from './transaction.ts'

/** A prepared query, which can run in a transaction. It takes its values in the order of the placeholders. */
export type Prepared<Values extends readonly unknown[], Row> = (db: Db, ...values: Values) => Promise<readonly Row[]>

/**
 * Prepares a query. `build` gets the placeholders of its values, which are different from all other values of the query.
 *
 * PostgreSQL makes one plan for all arrays, from the sizes that the tables have then. So a query of a table that may
 * grow fast belongs in transactions that set PLAN_BY_INDEX first.
 */
export function prepare<Values extends readonly unknown[], Row>(
  name: string,
  placeholders: readonly [...Values],
  build: (...parameters: [...Values, db: Db]) => { compile(by: Db): CompiledQuery<Row> },
): Prepared<Values, Row> {
  let built: CompiledQuery<Row> | undefined
  return async (db, ...values) => {
    built ??= build(...placeholders, db).compile(db)
    const query = CompiledQuery.raw(named(name, built.sql), bind(built, placeholders, values))
    return (await db.executeQuery<Row>(query)).rows
  }
}

/** The same outside of transactions, for reads of one row, of which Kysely would take a tenth of the time. */
export function prepareForPool<Values extends readonly unknown[], Row>(
  pool: pg.Pool,
  name: string,
  placeholders: readonly [...Values],
  built: CompiledQuery<Row>,
): (...values: Values) => Promise<Row | undefined> {
  return async (...values) => {
    const query = { name, text: built.sql, values: bind(built, placeholders, values) }
    return (await pool.query<Row & object>(query)).rows[0]
  }
}

/**
 * Runs a query that has few texts. In a change of an account, each is prepared under its digest: these transactions set
 * PLAN_BY_INDEX.
 */
export async function runPrepared<Row>(
  db: Db,
  query: { compile(by: Db): CompiledQuery<Row> },
): Promise<readonly Row[]> {
  const compiled = query.compile(db)
  if (!db.isTransaction) return (await db.executeQuery(compiled)).rows
  const { sql: text, parameters } = compiled
  return (await db.executeQuery<Row>(CompiledQuery.raw(named(hash('sha1', text), text), [...parameters]))).rows
}

/** Kysely does not know names, but gives its `sql` to node-postgres as it is, which takes an object with a name. */
function named(name: string, text: string): string {
  return { name, text } as unknown as string
}

function bind({ parameters }: CompiledQuery, placeholders: readonly unknown[], values: readonly unknown[]): unknown[] {
  return parameters.map((one) => (placeholders.includes(one) ? values[placeholders.indexOf(one)] : one))
}

/**
 * Columns of a select. From then on the transaction plans each query once for all values, and by indexes, even if a
 * table is empty now. It does not use the JIT compiler: PostgreSQL before 18 avoids reading a whole table by giving it
 * an enormous cost, and compiles what costs much.
 */
export const PLAN_BY_INDEX = sql.raw(`
  set_config('plan_cache_mode', 'force_generic_plan', true),
  set_config('enable_seqscan', 'off', true),
  set_config('jit', 'off', true)`)
