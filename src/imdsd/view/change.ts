import type { NetworkRange } from '../../metadata/instance.ts'
import type { Reports } from '../../metadata/reports.ts'
import type { ValidRecord } from './validate.ts'

/**
 * A change has the whole new state, so changes can be replayed from any earlier point. `unconfirmed`: of all ranges
 * exactly these are unconfirmed; after a replay of everything before. `reported`: all that the guest of an instance has
 * reported.
 */
export type ViewChange =
  | { readonly kind: 'replace'; readonly record: ValidRecord }
  | { readonly kind: 'remove'; readonly id: string; readonly order: number }
  | { readonly kind: 'unconfirmed'; readonly ranges: readonly NetworkRange[] }
  | { readonly kind: 'reported'; readonly id: string; readonly reports: Reports }

/** Records changes of the view on disk before they are applied. */
export interface ChangeLog {
  /**
   * Adds a change. `apply` is called once the change is on disk, or cannot be written. The promise resolves earlier: when
   * there is room for the next change. `removesUserData`: the change removes user-data that files may still have.
   */
  append(change: ViewChange, removesUserData: boolean, apply: () => void): Promise<void>
  /** Resolves when all recorded changes are applied. */
  allApplied(): Promise<void>
}
