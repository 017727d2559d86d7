/**
 * Reads the two values of an instance in Redis, for the daemon and for publishers. Without keys the values are plain.
 * With keys, plain values are rejected, and so are values that were not encrypted for this id, or a record and
 * user-data that were encrypted for different revisions.
 */
import { isEncrypted, type Decrypted, type RecordCipher } from './record-cipher.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'
import { parseJson } from '../../runtime/json.ts'
import { withoutOrder } from '../order.ts'

/**
 * The contents of the values. `order`: the place of the record in the order of the region; 0: it has none. `keys`: the
 * names of the keys of both; empty if they are plain.
 */
export type StoredContents =
  | {
      readonly kind: 'record'
      readonly document: unknown
      readonly order: number
      readonly userData: Buffer | undefined
      readonly keys: readonly string[]
    }
  | { readonly kind: 'unreadable' | 'rejected'; readonly reason: string }

/** Reads a record and its user-data (undefined: none). Decrypts user-data in slices. */
export async function readStored(
  id: string,
  record: Buffer,
  userData: Buffer | undefined,
  cipher: RecordCipher | undefined,
  budget: TurnBudget,
): Promise<StoredContents> {
  if (cipher === undefined) {
    return isEncrypted(record)
      ? { kind: 'unreadable', reason: 'the record is encrypted, and no keys are configured' }
      : readDocument(record, userData, [])
  }
  const decrypted = cipher.decrypt('record', id, record)
  if (decrypted.kind === 'rejected') return { kind: 'rejected', reason: `the record ${decrypted.reason}` }
  const bytes = userData && (await cipher.decryptInSlices('user-data', id, userData, budget))
  if (bytes?.kind === 'rejected') return { kind: 'rejected', reason: `the user-data ${bytes.reason}` }
  const { revision } = decrypted
  if (bytes !== undefined && bytes.revision !== revision)
    return {
      kind: 'rejected',
      reason: `the user-data is of revision ${bytes.revision}, the record of ${revision}`,
    }
  const values: Decrypted[] = bytes === undefined ? [decrypted] : [decrypted, bytes]
  const stored = readDocument(
    decrypted.bytes,
    bytes?.bytes,
    values.map(({ key }) => key),
  )
  if (stored.kind !== 'record' || (stored.document as { revision?: unknown } | undefined)?.revision === revision)
    return stored
  return { kind: 'rejected', reason: 'the record has another revision than the one that it was encrypted for' }
}

/** Reads the two values for a publisher: undefined if there are none. Rejects when they cannot be read. */
export async function readPublished(
  id: string,
  values: { readonly record: Buffer; readonly userData: Buffer | undefined; readonly fault?: string } | undefined,
  cipher: RecordCipher | undefined,
): Promise<Omit<Extract<StoredContents, { kind: 'record' }>, 'kind' | 'keys'> | undefined> {
  if (values === undefined) return undefined
  if (values.fault !== undefined) throw new Error(`${id} cannot be read: ${values.fault}`)
  const stored = await readStored(id, values.record, values.userData, cipher, new TurnBudget())
  if (stored.kind !== 'record') throw new Error(`${id} cannot be read: ${stored.reason}`)
  return { document: stored.document, order: stored.order, userData: stored.userData }
}

function readDocument(record: Buffer, userData: Buffer | undefined, keys: readonly string[]): StoredContents {
  const document = parseJson(record.toString())
  return document === undefined
    ? { kind: 'unreadable', reason: 'the record is not JSON' }
    : { kind: 'record', ...withoutOrder(document), userData, keys }
}
