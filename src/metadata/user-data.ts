/** Checks user-data against the size and digest in its record. */
import { createHash } from 'node:crypto'
import type { Instance } from './instance.ts'
import type { Fault } from './record.ts'

/** Lower-case hexadecimal SHA-256. */
export function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex')
}

/** The faults of the user-data of a record. `bytes`: undefined if there is none. `digest`: their SHA-256. */
export function userDataFaults(
  { userData: expected }: Instance,
  bytes: Uint8Array | undefined,
  digest: string | undefined,
  maxBytes: number,
): Fault[] {
  if (expected === undefined)
    return bytes === undefined
      ? []
      : [{ path: '/userData', message: 'is missing, although the instance has user-data' }]
  if (bytes === undefined) return [{ path: '/userData', message: 'describes user-data that is missing' }]
  if (bytes.length > maxBytes) return [{ path: '/userData', message: `is ${formatTooLong(bytes.length, maxBytes)}` }]
  if (expected.size !== bytes.length)
    return [{ path: '/userData/size', message: `does not match the ${bytes.length} bytes of the user-data` }]
  return expected.sha256 === digest ? [] : [{ path: '/userData/sha256', message: 'is not the digest of the user-data' }]
}

/** The text of a fault: user-data is too long. */
export function formatTooLong(bytes: number, maxBytes: number): string {
  return `${bytes} bytes, more than the limit of ${maxBytes} (IMDS_USER_DATA_MAX_BYTES)`
}
