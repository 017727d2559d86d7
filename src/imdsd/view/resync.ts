/**
 * A resync: the comparison of the view with the store's index. It begins with the index, from which it queues what
 * differs, and is complete when that is read.
 */
import { TurnBudget } from '../../limits/turn-budget.ts'
import type { Log } from '../../runtime/log-codes.ts'
import { isAhead } from '../../store/order.ts'
import type { Source } from '../../store/source.ts'
import type { Applier } from './applier.ts'
import type { ReadQueue } from './read-queue.ts'
import type { RecordHealth } from './record-health.ts'
import type { SyncState } from './sync-state.ts'
import type { InvalidRecord } from './validate.ts'
import type { View } from './view.ts'

export interface SyncMetrics {
  readonly notices: { inc(): void }
  readonly resyncs: { inc(labels: { result: 'completed' | 'failed' | 'uninitialised' }): void }
  readonly recordFaults: { inc(labels: { reason: InvalidRecord['reason'] }): void }
}

/** What a resync needs. `wall`: the time of day, in ms. */
export interface ResyncParts {
  readonly source: Source
  readonly view: View
  readonly queue: ReadQueue
  readonly health: RecordHealth
  readonly state: SyncState
  readonly applier: Applier
  readonly wall: () => number
  /**
   * Called after each completed resync, but not for a store whose records cannot be used. `beganAtMs`: of
   * `performance.now()`; since then the view has what the store had. `isFirst`: the first since the store was connected
   * or replaced.
   */
  readonly onResync: (beganAtMs: number, isFirst: boolean) => void
  /** The status has changed: the store was lost, or a resync has ended. */
  readonly onChange: () => void
  readonly metrics: SyncMetrics
  readonly log: Log
}

/** The last resync. */
export class Resync {
  readonly #parts: ResyncParts
  readonly #budget = new TurnBudget()
  /** What the index names. */
  #named: ReadonlyMap<string, string> = new Map()
  /** The last order of the region when the index was read. */
  #last = 0
  #beganAtMs = 0
  /** None has completed since the store was connected or replaced. */
  isFirst = true

  constructor(parts: ResyncParts) {
    this.#parts = parts
  }

  /** Reads the index and queues what differs. Does not begin with a store that has nothing of this region. */
  async begin(): Promise<void> {
    const { source, view, queue, health, applier, metrics, onChange } = this.#parts
    const beganAtMs = performance.now()
    const { initialised, digests, last = 0, isBehind = false } = await source.index()
    health.noteStore(!initialised)
    if (!initialised) {
      metrics.resyncs.inc({ result: 'uninitialised' })
      onChange()
      return
    }
    health.noteMark(isBehind)
    queue.beginResync()
    this.#beganAtMs = beganAtMs
    this.#named = digests
    this.#last = last
    for (const [id, digest] of digests) {
      await this.#budget.spend(0)
      const isCurrent = applier.isCurrent(id, digest)
      if (isCurrent) health.notePresent(id)
      if (!isCurrent || health.faultOf(id) !== undefined) queue.addIndexed(id)
    }
    for (const id of view.ids()) if (!digests.has(id)) queue.addIndexed(id)
    health.keepFaultsOf(digests)
    applier.forgetAllBut(digests)
  }

  /** All that was queued is read. */
  complete(): void {
    const { source, view, queue, health, state, metrics, log, wall, onResync, onChange } = this.#parts
    queue.endResync()
    health.completeResync(this.#named.keys())
    metrics.resyncs.inc({ result: 'completed' })
    const isUsable = health.problem === undefined
    if (isUsable && !state.wasResynced)
      log.info({ instances: view.size, faulty: health.faulty }, 'first resync completed: ready')
    state.noteResync(this.#beganAtMs, isUsable)
    // not with faulty records: they may be repaired without a publish, for example by a key
    if (health.faulty === 0 && !isAhead(this.#last, wall())) view.advance(this.#last)
    source.noteOrder?.(view.latest)
    // if that fails, the next resync tells the store again
    if (health.hasLaterStates) source.reportBehind?.().catch(() => undefined)
    onChange()
    if (!isUsable) return
    const { isFirst } = this
    this.isFirst = false
    onResync(this.#beganAtMs, isFirst)
  }
}
