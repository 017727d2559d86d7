/** Parses a region file. */
import type { Parsed } from '../../metadata/parsed.ts'
import { parseDocument } from '../../store/document.ts'
import { formatFaults } from '../http/faults.ts'
import { buildCheck } from '../http/lazy-compilers.ts'
import { findContradictions } from './contradictions.ts'
import { RegionSchema, type RegionFile } from './schema.ts'

const check = buildCheck(RegionSchema)

/**
 * Parses a region file. Reports every fault of the form of its entries at once, and if there is none, all others: ids
 * given twice, names that do not exist.
 */
export async function parseRegion(content: string | Uint8Array): Promise<Parsed<RegionFile, string>> {
  const document = await parseDocument(content, 'YAML')
  if (!document.ok)
    return {
      ok: false,
      faults: document.faults.map(({ message, line }) => (line === undefined ? message : `line ${line}: ${message}`)),
    }
  const formFaults = formatFaults(check(document.value), (text) => `the file ${text}`)
  if (formFaults.length > 0) return { ok: false, faults: formFaults.map(({ message }) => message) }
  const value = document.value as RegionFile
  const faults = findContradictions(value)
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}
