/**
 * What do the two values of an instance in Redis say?
 *
 * Read by the daemon and by publishers alike. Without keys they are plain, as they always were. With keys nothing is believed but what
 * was encrypted for this id, record and user-data for one revision; a plain value is a fault.
 */
import { isEncrypted, type Decrypted, type RecordCipher } from './record-cipher.ts'
import type { TurnBudget } from '../../runtime/turn-budget.ts'

/** What was found. `keys` names the keys of both values; empty where they are plain. */
export type Stored =
  | { readonly kind: 'record', readonly document: unknown, readonly userData: Buffer | null, readonly keys: readonly string[] }
  | { readonly kind: 'unreadable' | 'rejected', readonly reason: string }

/** Reads a record and its user-data (null: there is none), which is decrypted in slices. */
export async function readStored(id: string, record: Buffer, userData: Buffer | null, cipher: RecordCipher | null, budget: TurnBudget): Promise<Stored> {
  if (cipher === null) {
    return isEncrypted(record) ? { kind: 'unreadable', reason: 'the record is encrypted, and no keys are configured' } : readDocument(record, userData, [])
  }
  const decrypted = cipher.decrypt('record', id, record)
  if ('rejected' in decrypted) return { kind: 'rejected', reason: `the record ${decrypted.rejected}` }
  const bytes = userData === null ? null : await cipher.decryptInSlices('user-data', id, userData, budget)
  if (bytes !== null && 'rejected' in bytes) return { kind: 'rejected', reason: `the user-data ${bytes.rejected}` }
  const { revision } = decrypted
  if (bytes !== null && bytes.revision !== revision) return { kind: 'rejected', reason: `the user-data is of revision ${String(bytes.revision)}, the record of ${String(revision)}` }
  const values: Decrypted[] = bytes === null ? [decrypted] : [decrypted, bytes]
  const stored = readDocument(decrypted.bytes, bytes?.bytes ?? null, values.map(({ key }) => key))
  if (stored.kind !== 'record' || (stored.document as { revision?: unknown } | null)?.revision === revision) return stored
  return { kind: 'rejected', reason: 'the record says another revision than it was encrypted for' }
}

function readDocument(record: Buffer, userData: Buffer | null, keys: readonly string[]): Stored {
  try {
    return { kind: 'record', document: JSON.parse(record.toString()) as unknown, userData, keys }
  } catch {
    return { kind: 'unreadable', reason: 'the record is not JSON' }
  }
}
