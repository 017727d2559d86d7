/**
 * Queries that are built once and that each connection prepares once. They are for the most frequent reads, because
 * building a query with its joins takes longer than running it. Their columns are listed one by
 * one, because a prepared `select *` fails once a later version adds a column.
 */
import { CompiledQuery, sql, type Compilable } from 'kysely'
import type pg from 'pg'
import type { Db } from './transaction.ts'

/** A prepared query: takes its values in the order in which the query was built with them. */
export type Prepared<Values extends readonly string[], Row> = (...values: Values) => Promise<Row | undefined>

/**
 * Prepares a query for at most one row. `build` gets a placeholder for each value, and must use each once, in their
 * order.
 */
export function prepareOne<Values extends readonly string[], Row>(
  pool: pg.Pool,
  name: string,
  placeholders: Values,
  build: (...values: Values) => Compilable<Row>,
): Prepared<Values, Row> {
  const { sql, parameters } = build(...placeholders).compile()
  if (parameters.length !== placeholders.length || parameters.some((parameter, i) => parameter !== placeholders[i])) {
    throw new Error(`the prepared query ${name} must use its values, each once and in order`)
  }
  return async (...values) => (await pool.query<Row & object>({ name, text: sql, values: [...values] })).rows[0]
}

/** A prepared query whose only value is an array of texts or numbers. */
export type PreparedList<Row> = (db: Db, values: readonly (string | number)[]) => Promise<readonly Row[]>

/**
 * Prepares a query with one array for Kysely, so that it can run in a transaction. `build` gets a placeholder for the
 * array.
 *
 * PostgreSQL makes one plan for all arrays, from the sizes that the tables have then. So a query of a table that may
 * grow fast belongs in transactions that set PLAN_BY_INDEX first.
 */
export function prepareList<Row>(
  name: string,
  build: (values: readonly string[], db: Db) => { compile(by: Db): CompiledQuery<Row> },
): PreparedList<Row> {
  const array: readonly string[] = []
  let built: CompiledQuery<Row> | undefined
  return async (db, values) => {
    built ??= build(array, db).compile(db)
    // Kysely does not know names, but gives its `sql` to node-postgres as it is, which takes an object with a name.
    const named = { name, text: built.sql } as unknown as string
    const parameters = built.parameters.map((one) => (one === array ? values : one))
    return (await db.executeQuery<Row>(CompiledQuery.raw(named, parameters))).rows
  }
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
