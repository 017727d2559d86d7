/**
 * The hypervisors that some entries of the region's index name. Reads a few entries, and no long one. It is only a hint
 * for operators: an error of Redis leaves it out, so that it does not fail a resync.
 */
import { parseFields } from '../fleet.ts'
import { hypervisorNames, hypervisorsOf, SAMPLED_RECORDS } from '../hypervisor-names.ts'

/** The longest entry that is read. Only entries of instances with dozens of addresses are longer. */
const MAX_ENTRY_BYTES = 4096

/**
 * Returns a sample as `Source.hypervisors` does, of the index in `key`. `ask` runs commands; a reply may be an Error.
 */
export async function sampleHypervisors(
  ask: (commands: (string | number)[][]) => Promise<unknown[]>,
  key: string,
): Promise<readonly string[] | undefined> {
  const [ids] = await ask([['hrandfield', key, SAMPLED_RECORDS]])
  if (!Array.isArray(ids)) return undefined
  if (ids.length === 0) return []
  const lengths = await ask((ids as string[]).map((id) => ['hstrlen', key, id]))
  const short = (ids as string[]).filter((_id, i) => typeof lengths[i] === 'number' && lengths[i] <= MAX_ENTRY_BYTES)
  if (short.length === 0) return undefined
  const [entries] = await ask([['hmget', key, ...short]])
  return Array.isArray(entries)
    ? hypervisorNames(entries.map((entry) => hypervisorsOf(parseFields(String(entry)))))
    : undefined
}
