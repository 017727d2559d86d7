/**
 * Queries that are built once and that each connection prepares once. They are for the most frequent reads, because
 * building a query with its joins takes longer than running it (docs/performance.md). Their columns are listed one by
 * one, because a prepared `select *` fails once a later version adds a column.
 */
import type { Compilable } from 'kysely'
import type pg from 'pg'

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
