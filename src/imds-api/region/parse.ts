/** Parses a region file. */
import type { Parsed } from '../../metadata/parsed.ts'
import { parseDocument } from '../../store/document.ts'
import { isPasswordHash } from '../auth/password.ts'
import { formatFaults } from '../http/faults.ts'
import { buildCheck } from '../http/lazy-compilers.ts'
import { poolFaults } from './pools.ts'
import { takeRemoved, type Region } from './removed.ts'
import { RegionSchema, type RegionFile } from './schema.ts'

const check = buildCheck(RegionSchema)

/**
 * Parses a region file. Reports every fault of the form of its entries at once, and if there is none, those of address
 * pools. The database finds the others.
 */
export async function parseRegion(content: string | Uint8Array): Promise<Parsed<Region, string>> {
  const document = await parseDocument(content, 'YAML')
  if (!document.ok)
    return {
      ok: false,
      faults: document.faults.map(({ message, line }) => (line === undefined ? message : `line ${line}: ${message}`)),
    }
  const { rest, removed } = takeRemoved(document.value)
  const formFaults = formatFaults(check(rest), (text) => `the file ${text}`)
  if (formFaults.length > 0) return { ok: false, faults: formFaults.map(({ message }) => message) }
  const file = rest as RegionFile
  const faults = [...poolFaults(file.address_pools), ...credentialFaults(file)]
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value: { file, removed } }
}

function credentialFaults({ users }: RegionFile): string[] {
  return users.flatMap(({ id, password_file, password_hash }) =>
    password_hash === undefined || (password_file === undefined && isPasswordHash(password_hash))
      ? []
      : [
          password_file === undefined
            ? `users: ${id} has a password_hash that is not one of scrypt such as $scrypt$ln=15,r=8,p=3$SALT$KEY`
            : `users: ${id} has a password_file and a password_hash: keep one of them`,
        ],
  )
}
