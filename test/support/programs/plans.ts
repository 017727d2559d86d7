/**
 * The plans of the statements that a PostgreSQL runs, those of triggers and of other processes too: its module
 * auto_explain writes them into its log.
 */
import { readFileSync } from 'node:fs'

/** The settings of a server. */
export const LOG_PLANS = [
  'auto_explain.log_min_duration=0',
  'auto_explain.log_format=json',
  'auto_explain.log_level=warning',
]

/** A statement that ran. `ms`: its time in the server. */
export interface LoggedPlan {
  readonly query: string
  readonly ms: number
  readonly plan: PlanNode
}

/** A node of a plan. */
interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly Plans?: readonly PlanNode[]
}

/** The statements in the log of a server, from a byte of the file on. */
export function readPlans(file: string, from: number): readonly LoggedPlan[] {
  const text = readFileSync(file).subarray(from).toString()
  return [...text.matchAll(/ duration: ([\d.]+) ms {2}plan:\n((?:\t.*\n)+)/g)].map(([, ms, json]) => {
    const { 'Query Text': query, Plan: plan } = JSON.parse(json!) as { 'Query Text': string; Plan: PlanNode }
    return { query: query.replaceAll(/\s+/g, ' ').trim(), ms: Number(ms), plan }
  })
}

/** A read of a table. `index` undefined: the table is read from end to end. */
export interface TableRead {
  readonly table: string
  readonly index: string | undefined
  /** True if rows are found by a value, so that not all of the index is read. */
  readonly isBound: boolean
}

/** The reads of tables in a plan. */
export function readsOf(node: PlanNode, heap?: string): readonly TableRead[] {
  const { 'Node Type': type, 'Relation Name': relation = heap, 'Index Name': index } = node
  // below the bitmap scan of a table, the scan of the index does not name the table
  const inBitmap = type.startsWith('Bitmap') ? relation : undefined
  const below = (node.Plans ?? []).flatMap((one) => readsOf(one, inBitmap))
  if (relation === undefined || (index === undefined && type !== 'Seq Scan')) return below
  return [{ table: relation, index, isBound: node['Index Cond'] !== undefined }, ...below]
}
