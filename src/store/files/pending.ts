/**
 * A change of an instance in files, complete in one file: `ID.pending`. It takes one rename to commit the change, and the file counts
 * before the instance's other files until those have been brought in line and it is removed.
 *
 * The first line is JSON, `{ "record": ..., "userData": "set" | "keep" | "none" }` or `{ "tombstone": "REVISION [SEALED-AT]" }`; with
 * "set" the user-data follows it, byte for byte.
 */
import type { UserDataChange } from '../user-data.ts'

/** What happens to the files of an instance. */
export type Change =
  | { readonly kind: 'put', readonly document: unknown, readonly userData: UserDataChange }
  | { readonly kind: 'remove', readonly tombstone: string }

/** The bytes of the file. */
export function formatPending(change: Change): Uint8Array {
  if (change.kind === 'remove') return Buffer.from(`${JSON.stringify({ tombstone: change.tombstone })}\n`)
  const { document, userData } = change
  const isSet = typeof userData !== 'string'
  const header = Buffer.from(`${JSON.stringify({ record: document, userData: isSet ? 'set' : userData })}\n`)
  return isSet ? Buffer.concat([header, userData]) : header
}

/** The change that the bytes of a file hold, or undefined. */
export function parsePending(bytes: Buffer): Change | undefined {
  const end = bytes.indexOf('\n')
  let header: unknown
  try {
    header = JSON.parse(bytes.subarray(0, end).toString('utf8'))
  } catch {
    return undefined
  }
  const { record, userData, tombstone } = (header ?? {}) as Record<string, unknown>
  if (typeof tombstone === 'string') return { kind: 'remove', tombstone }
  if (userData === 'set') return { kind: 'put', document: record, userData: bytes.subarray(end + 1) }
  return userData === 'keep' || userData === 'none' ? { kind: 'put', document: record, userData } : undefined
}
