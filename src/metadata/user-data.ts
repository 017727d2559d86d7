/**
 * Checks user-data against what its record says of it.
 */
import { createHash } from 'node:crypto'
import type { Instance } from './instance.ts'
import type { Fault } from './record.ts'

/** Lower-case hexadecimal SHA-256. */
export function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex')
}

/** What is wrong between a record and the bytes that came with it, whose SHA-256 is `digest`. */
export function userDataFaults({ userData: expected }: Instance, bytes: Uint8Array | null, digest: string | null, maxBytes: number): Fault[] {
  if (expected === undefined) return bytes === null ? [] : [{ path: '/userData', message: 'is missing although user-data is there' }]
  if (bytes === null) return [{ path: '/userData', message: 'tells of user-data that is not there' }]
  if (bytes.length > maxBytes) return [{ path: '/userData', message: `is ${formatTooLong(bytes.length, maxBytes)}` }]
  if (expected.size !== bytes.length) return [{ path: '/userData/size', message: `is not the ${String(bytes.length)} bytes that the user-data has` }]
  return expected.sha256 === digest ? [] : [{ path: '/userData/sha256', message: 'is not the digest of the user-data' }]
}

/** Says that user-data has too many bytes. */
export function formatTooLong(bytes: number, maxBytes: number): string {
  return `${String(bytes)} bytes, more than the limit of ${String(maxBytes)} (IMDS_USER_DATA_MAX_BYTES)`
}
