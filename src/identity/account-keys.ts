/** The private keys in records: which one signs. */
import { createPrivateKey, type KeyObject } from 'node:crypto'
import type { Instance } from '../metadata/instance.ts'

/**
 * The key, in PEM, that signs at a time (milliseconds since 1970): the latest that has begun. If none has, the first one:
 * the clock of this hypervisor is behind.
 */
export function signingKey(keys: NonNullable<Instance['identity']>['keys'], nowMs: number): string {
  const byTime = keys.toSorted((a, b) => Date.parse(a.signsFrom) - Date.parse(b.signsFrom))
  return (byTime.findLast(({ signsFrom }) => Date.parse(signsFrom) <= nowMs) ?? byTime[0]!).privateKey
}

/** Parses a key. Throws an error without a part of it if it is none. */
export function parseAccountKey(privateKey: string): KeyObject {
  try {
    return createPrivateKey(privateKey)
  } catch {
    throw new Error("the record's identity key is not a private key in PEM")
  }
}
