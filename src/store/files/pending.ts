/**
 * The file `ID.pending`: a complete change of an instance. Renaming it into place commits the change. It overrides the
 * other files of the instance until the writer has updated them and removes it.
 *
 * The first line is JSON, `{ "record": ..., "userData": "set" | "keep" | "none" }` or `{ "tombstone": "REVISION
 * [SEALED-AT]" }`. With "set" the user-data follows the line, byte for byte.
 */
import { MAX_RECORD_BYTES } from '../../metadata/instance.ts'
import { parseJson } from '../../runtime/json.ts'
import type { UserDataChange } from '../user-data.ts'

/** Twice a record's limit. The header is parsed in one turn of the event loop. */
const MAX_HEADER_BYTES = 2 * MAX_RECORD_BYTES

export type PendingChange =
  | { readonly kind: 'put'; readonly document: unknown; readonly userData: UserDataChange }
  | { readonly kind: 'remove'; readonly tombstone: string }

export function formatPending(change: PendingChange): Uint8Array {
  if (change.kind === 'remove') return Buffer.from(`${JSON.stringify({ tombstone: change.tombstone })}\n`)
  const { document, userData } = change
  const isSet = typeof userData !== 'string'
  const header = Buffer.from(`${JSON.stringify({ record: document, userData: isSet ? 'set' : userData })}\n`)
  return isSet ? Buffer.concat([header, userData]) : header
}

export function parsePending(bytes: Buffer): PendingChange | undefined {
  const end = bytes.indexOf('\n')
  if (end === -1 || end > MAX_HEADER_BYTES) return undefined
  const header = parseJson(bytes.subarray(0, end).toString('utf8'))
  const { record, userData, tombstone } = (header ?? {}) as Record<string, unknown>
  if (typeof tombstone === 'string') return { kind: 'remove', tombstone }
  if (userData === 'set') return { kind: 'put', document: record, userData: bytes.subarray(end + 1) }
  return userData === 'keep' || userData === 'none' ? { kind: 'put', document: record, userData } : undefined
}
