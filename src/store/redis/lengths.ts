/**
 * What a value in Redis may weigh before it is read: lengths are asked first, so that a value of any length costs its
 * readers little.
 */
import { MAX_RECORD_BYTES } from '../../metadata/instance.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES } from '../crypto/record-cipher.ts'
import { MAX_ORDER_BYTES } from '../order.ts'
import { valueOf } from './connection.ts'

/** The lengths of an instance's values in bytes; 0: there is no such value. */
export interface Lengths {
  readonly record: number
  readonly digest: number
  readonly userData: number
}

export const MAX_ID_BYTES = 64
/** More than any digest. Publishers in other languages may use longer ones than ours. */
export const MAX_DIGEST_BYTES = 4096
/** The most memory of an index: some 100,000 instances. */
const MAX_INDEX_BYTES = 64 * 1024 * 1024

/** The commands that ask for the lengths of an instance's values. `lengthsOf` takes their replies. */
export function lengthCommands(key: string): string[][] {
  return ['record', 'digest', 'user-data'].map((field) => ['hstrlen', key, field])
}

/** The lengths from the replies to `lengthCommands`. Throws the first error among them. */
export function lengthsOf(replies: readonly unknown[]): Lengths {
  const [record, digest, userData] = replies.map(valueOf) as number[]
  return { record: record!, digest: digest!, userData: userData! }
}

/** Why a record or a digest of these lengths is not read, or undefined. */
export function formatTooLong(
  { record, digest }: Pick<Lengths, 'record' | 'digest'>,
  isEncrypted: boolean,
): string | undefined {
  const most = MAX_RECORD_BYTES + MAX_ORDER_BYTES + (isEncrypted ? MAX_ENCRYPTION_OVERHEAD_BYTES : 0)
  if (record > most) return `the record is ${record} bytes, more than the limit of ${most}`
  return digest > MAX_DIGEST_BYTES
    ? `the digest is ${digest} bytes, more than the limit of ${MAX_DIGEST_BYTES}`
    : undefined
}

/** The error of an index that is too large to be read. Asking again does not help. */
export class IndexTooLarge extends Error {}

/** Rejects with IndexTooLarge if an index is too large to be read. */
export async function checkIndex(
  ask: (commands: (string | number)[][]) => Promise<unknown[]>,
  key: string,
): Promise<void> {
  const bytes = valueOf((await ask([['memory', 'usage', key, 'samples', 0]]))[0])
  if (typeof bytes === 'number' && bytes > MAX_INDEX_BYTES) {
    throw new IndexTooLarge(
      `the index ${key} takes ${bytes} bytes in Redis, ` +
        `more than the limit of ${MAX_INDEX_BYTES}: delete what does not belong there`,
    )
  }
}
