/**
 * Decides what a loaded record means for the view. Pure: applier.ts carries the decision out.
 *
 * An instance leaves the view only by a tombstone or by a record that names other hypervisors (invariant 8). A faulty
 * record leaves the last good one in place (invariant 3).
 */
import { validate, type ValidRecord, type InvalidRecord } from './validate.ts'
import type { Loaded } from '../../store/source.ts'

/**
 * Why an id was read: the store's index or a notice names it for this hypervisor, or its record owns the address of an
 * unknown peer. In the last case, a record that does not name this hypervisor is ignored, because anyone can send a
 * packet from any address.
 */
export type Origin = 'index' | 'notice' | 'peer'

export type Plan =
  | { readonly kind: 'replace'; readonly record: ValidRecord }
  /** Gone from this hypervisor: removed, or `movedTo` others. It may not have been in the view. */
  | { readonly kind: 'remove'; readonly movedTo: ValidRecord | undefined }
  /** The view already has this record. */
  | { readonly kind: 'keep' }
  /** The store no longer has this instance of the view, which is kept (invariant 8). */
  | { readonly kind: 'keep-unconfirmed' }
  | { readonly kind: 'fault'; readonly digest: string | undefined; readonly fault: InvalidRecord }
  /** The instance is not in the view, and is not one of this hypervisor. */
  | { readonly kind: 'ignore' }

/**
 * What a plan depends on besides the record. `hypervisor`: the name of this hypervisor; undefined to serve every
 * instance of the store.
 */
export interface PlanContext {
  readonly hypervisor: string | undefined
  readonly userDataMaxBytes: number
}

const MISSING: InvalidRecord = {
  reason: 'unreadable',
  faults: [{ path: '', message: 'is missing although the index names it' }],
}

/** Plans what to do with a loaded record. `current` is what the view has under its id. */
export function plan(
  loaded: Loaded,
  current: ValidRecord | undefined,
  origin: Origin,
  { hypervisor, userDataMaxBytes }: PlanContext,
): Plan {
  if (loaded.kind === 'absent') {
    if (current !== undefined) return { kind: 'keep-unconfirmed' }
    return origin === 'index' ? { kind: 'fault', digest: undefined, fault: MISSING } : { kind: 'ignore' }
  }
  if (loaded.kind === 'removed') return { kind: 'remove', movedTo: undefined }
  const { digest } = loaded
  const validated = validate(loaded, userDataMaxBytes)
  if (!validated.ok) {
    const { reason, faults } = validated
    return origin === 'peer' && current === undefined
      ? { kind: 'ignore' }
      : { kind: 'fault', digest, fault: { reason, faults } }
  }
  const { value: record } = validated
  if (hypervisor !== undefined && !record.instance.hypervisors.includes(hypervisor))
    return { kind: 'remove', movedTo: record }
  const isSame = digest !== undefined && current?.digest === digest
  return isSame ? { kind: 'keep' } : { kind: 'replace', record }
}
