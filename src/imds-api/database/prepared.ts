/**
 * Queries that each connection prepares once, because PostgreSQL plans most of them longer than it runs them; and among
 * them those that are built once, because building a query with its joins takes longer too. Their columns are listed
 * one by one, because a prepared `select *` fails once a later version adds a column.
 */
import { hash } from 'node:crypto'
import { CompiledQuery, sql } from 'kysely'
import type pg from 'pg'
import type { Db } from './transaction.ts'

/**
 * Prepares a query that was built once, for reads of one row outside of transactions. It takes its values in the order of
 * the placeholders, which are different from all other values of the query.
 */
export function prepareForPool<Values extends readonly unknown[], Row>(
  pool: pg.Pool,
  name: string,
  placeholders: readonly [...Values],
  built: CompiledQuery<Row>,
): (...values: Values) => Promise<Row | undefined> {
  return async (...given) => {
    const values = built.parameters.map((one) => (placeholders.includes(one) ? given[placeholders.indexOf(one)] : one))
    return (await pool.query<Row & object>({ name, text: built.sql, values })).rows[0]
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
  // Kysely does not know names, but gives its `sql` to node-postgres as it is, which takes an object with a name
  const named = { name: hash('sha1', text), text } as unknown as string
  return (await db.executeQuery<Row>(CompiledQuery.raw(named, [...parameters]))).rows
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
