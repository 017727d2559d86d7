/**
 * The names of hypervisors that some records of a region have, for an operator who looks for a misspelt one. A sample:
 * no source reads all records for it.
 */
import { isName } from '../metadata/identifiers.ts'

/** How many records a source looks at. */
export const SAMPLED_RECORDS = 16
const MAX_NAMES = 5

/** The field `hypervisors` of a record or an entry, which may have any shape; undefined: none. */
export function hypervisorsOf(document: unknown): unknown {
  return document instanceof Object ? (document as { hypervisors?: unknown }).hypervisors : undefined
}

/**
 * The names in the `hypervisors` of records, without duplicates and in order; undefined: none. Other programs write
 * records, so any shape is possible.
 */
export function hypervisorNames(fields: readonly unknown[]): readonly string[] | undefined {
  const names = new Set(fields.flat().filter((name) => typeof name === 'string' && isName(name)) as string[])
  return names.size === 0 ? undefined : [...names].sort().slice(0, MAX_NAMES)
}
