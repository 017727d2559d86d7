/** The user-data that comes with a record, in the stores and on its way into them. */

import { isJsonObject } from '../runtime/json.ts'

/** What happens to the user-data of an instance: it becomes these bytes, is removed, or stays as it is. */
export type UserDataChange = Uint8Array | 'none' | 'keep'

/**
 * Returns the document with a `userData` that describes the bytes, whose SHA-256 is `digest`, unless it has one
 * already.
 */
export function fillUserData(document: unknown, bytes: Uint8Array | undefined, digest: string | undefined): unknown {
  if (bytes === undefined || !isJsonObject(document) || 'userData' in document) return document
  return { ...document, userData: { size: bytes.length, sha256: digest } }
}
