import type { ValidRecord } from './validate.ts'

/** The whole new state of an instance, or its removal. So changes can be applied again in their order. */
export type ViewChange =
  { readonly kind: 'replace'; readonly record: ValidRecord } | { readonly kind: 'remove'; readonly id: string }

/** Records changes of the view on disk before they are applied. */
export interface ChangeLog {
  /**
   * Calls `apply` when the change is on disk, or cannot be written. Resolves when the next change may be recorded, which
   * may be earlier. `removesUserData`: the change removes user-data from the view that files may still have.
   */
  record(change: ViewChange, removesUserData: boolean, apply: () => void): Promise<void>
  /** Resolves when all recorded changes are applied. */
  settled(): Promise<void>
}
