/**
 * Decides what a loaded record means for the view. Pure: applier.ts carries the decision out.
 *
 * An instance leaves the view only by a tombstone or by a record that names other hypervisors (invariant 8). A faulty
 * record leaves the last good one in place (invariant 3).
 */
import { validate, type ValidRecord, type InvalidRecord } from './validate.ts'
import { isAhead } from '../../store/order.ts'
import type { Loaded } from '../../store/source.ts'

/**
 * Why an id was read: the store's index or a notice names it for this hypervisor, or its record owns the address of an
 * unknown peer. In the last case, a record that does not name this hypervisor is ignored, because anyone can send a
 * packet from any address.
 */
export type Origin = 'index' | 'notice' | 'peer'

export type Plan =
  | { readonly kind: 'replace'; readonly record: ValidRecord }
  /** Gone from this hypervisor: removed, or `movedTo` others. It may not have been in the view. `order`: of that. */
  | { readonly kind: 'remove'; readonly movedTo: ValidRecord | undefined; readonly order: number }
  /** The view already has this record. */
  | { readonly kind: 'keep' }
  /** The store no longer has this instance of the view, which is kept (invariant 8). */
  | { readonly kind: 'keep-absent' }
  /** The view has seen a later state of this instance, or its removal: the store has lost changes. */
  | { readonly kind: 'behind' }
  | { readonly kind: 'fault'; readonly digest: string | undefined; readonly fault: InvalidRecord }
  /** The instance is not in the view, and is not one of this hypervisor. */
  | { readonly kind: 'ignore' }

/**
 * What a plan depends on besides the record. `hypervisor`: the name of this hypervisor; undefined to serve every
 * instance of the store. `wall`: the time in milliseconds since 1970.
 */
export interface PlanContext {
  readonly hypervisor: string | undefined
  readonly userDataMaxBytes: number
  readonly wall: () => number
}

const MISSING: InvalidRecord = {
  reason: 'unreadable',
  faults: [{ path: '', message: 'is missing although the index names it' }],
}

const AHEAD: InvalidRecord = {
  reason: 'order',
  faults: [
    {
      path: '',
      message:
        'was published more than a day in the future by the clock of this hypervisor: correct the clock that is wrong ' +
        '(of the publisher, of Redis, or of this hypervisor), and publish it again',
    },
  ],
}

/**
 * Plans what to do with a loaded record. `current` is what the view has under its id; `seen` is the latest order that the
 * view has seen of it, of its record or its removal (view.ts).
 */
export function plan(
  loaded: Loaded,
  current: ValidRecord | undefined,
  seen: number,
  origin: Origin,
  { hypervisor, userDataMaxBytes, wall }: PlanContext,
): Plan {
  if (loaded.kind === 'absent') {
    if (current !== undefined) return { kind: 'keep-absent' }
    return origin === 'index' ? { kind: 'fault', digest: undefined, fault: MISSING } : { kind: 'ignore' }
  }
  const digest = loaded.kind === 'removed' ? undefined : loaded.digest
  const fault = (of: InvalidRecord): Plan =>
    origin === 'peer' && current === undefined ? { kind: 'ignore' } : { kind: 'fault', digest, fault: of }
  const { order = 0 } = loaded.kind === 'record' || loaded.kind === 'removed' ? loaded : {}
  if (isAhead(order, wall())) return fault(AHEAD)
  if (loaded.kind === 'removed')
    return current !== undefined && order < current.order
      ? { kind: 'behind' }
      : { kind: 'remove', movedTo: undefined, order }
  const validated = validate(loaded, userDataMaxBytes)
  if (!validated.ok) return fault({ reason: validated.reason, faults: validated.faults })
  const { value: record } = validated
  const isElsewhere = hypervisor !== undefined && !record.instance.hypervisors.includes(hypervisor)
  if (isElsewhere && current === undefined) return { kind: 'remove', movedTo: record, order }
  // what was removed or replaced at this order, or later, does not come back without a later publish
  if (seen > 0 && order <= seen && order !== current?.order) return { kind: 'behind' }
  if (isElsewhere) return { kind: 'remove', movedTo: record, order }
  const isSame = digest !== undefined && current?.digest === digest
  return isSame ? { kind: 'keep' } : { kind: 'replace', record }
}
