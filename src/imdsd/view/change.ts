import type { ValidRecord } from './validate.ts'

/** A change has the whole new state, so a journal can be replayed from any earlier point. */
export type ViewChange =
  | { readonly kind: 'replace'; readonly record: ValidRecord }
  | { readonly kind: 'remove'; readonly id: string }

/** Records changes of the view on disk before they are applied. */
export interface ChangeLog {
  /**
   * Calls `apply` when the change is on disk, or cannot be written. Resolves when the next change may be recorded, which
   * may be earlier. `removesUserData`: the change removes user-data from the view that files may still have.
   */
  append(change: ViewChange, removesUserData: boolean, apply: () => void): Promise<void>
  /** Resolves when all recorded changes are applied. */
  allApplied(): Promise<void>
}
