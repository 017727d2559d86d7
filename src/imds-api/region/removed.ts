/** The entries of a region file that are removed from the database: those with `removed: true`. Pure. */
import { POOL_KINDS } from '../model/pools.ts'
import type { RegionFile } from './schema.ts'
import type { RegionTable } from './tables.ts'

/** The keys of the rows to remove, by their table. */
export type RemovedKeys = Readonly<Partial<Record<RegionTable, readonly string[]>>>

/** A region file, without what is removed. */
export interface Region {
  readonly file: RegionFile
  readonly removed: RemovedKeys
}

type RegionEntry = Readonly<Record<string, unknown>>

/** Takes the removed entries out of a file that was not checked yet. Only the id (or the name) of each counts. */
export function takeRemoved(value: unknown): { readonly rest: unknown; readonly removed: RemovedKeys } {
  if (!isEntry(value)) return { rest: value, removed: {} }
  const removed: Record<string, readonly string[]> = {}
  const rest = Object.entries(value).map(([list, entries]) => {
    if (list === 'address_pools' && isEntry(entries) && isTexts(entries['removed'])) {
      const { removed: ranges, ...pools } = entries
      removed[list] = POOL_KINDS.flatMap((kind) => ranges.map((range) => `${kind} ${range}`))
      return [list, pools]
    }
    if (!Array.isArray(entries)) return [list, entries]
    const isRemoved = (entry: unknown) => isEntry(entry) && entry['removed'] === true
    removed[list] = entries.filter(isRemoved).map((entry: RegionEntry) => String(entry['id'] ?? entry['name']))
    return [list, entries.filter((entry) => !isRemoved(entry))]
  })
  return { rest: Object.fromEntries(rest), removed }
}

function isEntry(value: unknown): value is RegionEntry {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((text) => typeof text === 'string')
}
