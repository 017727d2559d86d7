/**
 * The rules of revisions and addresses, for a store that can read its records; seal.ts has the rule of seals.
 * publish.lua has the same rules, and test/redis/publish.test.ts sends both the same changes.
 */
import type { NetworkRange } from '../metadata/instance.ts'
import type { PutRefusal } from './publisher.ts'

/**
 * What a store has of an instance: the revision and the incarnation of its record or tombstone, and the seal. A removed
 * one owns no address.
 */
export interface Stored {
  readonly revision: number
  readonly incarnation?: string | undefined
  readonly sealedAt: string | undefined
  readonly ranges: readonly NetworkRange[]
  readonly isRemoved: boolean
}

/** True if a store has another incarnation. If either has none, nothing is compared. */
export function isOtherIncarnation(stored: Stored | undefined, given: string | undefined): boolean {
  return given !== undefined && stored?.incarnation !== undefined && given !== stored.incarnation
}

/**
 * Judges a put. `isSame`: record and user-data are those of the store. `owned`: the first address of the record that
 * another instance owns.
 */
export function judgePut(
  revision: number,
  stored: Stored | undefined,
  isSame: boolean,
  owned: (NetworkRange & { readonly owner: string }) | undefined,
): { readonly kind: 'write' } | { readonly kind: 'unchanged' } | PutRefusal {
  if (stored !== undefined && revision < stored.revision) return { kind: 'stale', revision: stored.revision }
  if (revision === stored?.revision) return isSame ? { kind: 'unchanged' } : { kind: 'stale', revision }
  if (owned !== undefined)
    return { kind: 'address-owned', network: owned.network, address: owned.range, owner: owned.owner }
  return { kind: 'write' }
}

/**
 * Judges a removal. `given`: its revision; undefined: the next one. `hasRecord`: there is a record, though it may be
 * faulty; `hasTombstone`: it was removed before.
 */
export function judgeRemove(
  given: number | undefined,
  stored: Stored | undefined,
  { hasRecord, hasTombstone }: { readonly hasRecord: boolean; readonly hasTombstone: boolean },
):
  | { readonly kind: 'absent' }
  | { readonly kind: 'stale'; readonly revision: number }
  | { readonly kind: 'write'; readonly revision: number } {
  if (!hasRecord && !hasTombstone && given === undefined) return { kind: 'absent' }
  const last = stored?.revision ?? 0
  const revision = given ?? (hasRecord ? last + 1 : Math.max(last, 1))
  return revision < last ? { kind: 'stale', revision: last } : { kind: 'write', revision }
}
