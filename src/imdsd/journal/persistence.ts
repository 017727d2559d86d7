/**
 * Keeps the journal in step with the view (journal.ts has its format and the order of writes).
 *
 *     closed --- a change waits for a rewrite ---> open <--- a rewrite succeeds, 30 s later --- lost
 *        ^                                       |   |                                           ^
 *        +---- a comparison cannot be written ---+   +--- a change, or the rewrite that it ------+
 *                                                         waits for, cannot be written
 *
 * `closed`: at the start. The journal on the disk has every change, or is not served, or there is none. A change waits
 * for a rewrite; one that is served is rewritten after a resync too.
 * `open`: changes are appended. It is rewritten beside that when they are longer than what was written first, and soon
 * after a change that removes user-data.
 * `lost`: the disk failed or took too long, and the journal was deleted: the next start serves nothing until the store
 * answers, rather than an old state. Changes are applied without the disk.
 *
 * Only the queue's loop (#write) changes the state, and it handles the end of a rewrite.
 */
import { inTime } from '../../limits/in-time.ts'
import type { Reports } from '../../metadata/reports.ts'
import type { ViewChange, ChangeLog } from '../view/change.ts'
import type { View } from '../view/view.ts'
import { buildChangeQueue } from './change-queue.ts'
import type { Disk } from './disk.ts'
import { encodeChange } from './encoding.ts'
import { JournalName } from './journal-name.ts'
import type { JournalWriter } from './journal-writer.ts'
import type { Restored } from './restore.ts'
import { Rewrite, snapshotOf } from './rewrite.ts'
import { RewriteSchedule } from './rewrite-schedule.ts'
import type { StaleMark } from './stale-mark.ts'
import type { StateKeys, StateOwner } from './state-files.ts'

/** Why the journal cannot be kept. */
export interface JournalProblem {
  readonly kind: 'not-rewritten' | 'lost' | 'not-deleted'
  readonly reason: string
}

/** A journal that has grown by more (see `growth`) is rewritten, or must be before a further change. */
const [REWRITE_AT_GROWTH, WAIT_AT_GROWTH] = [1, 4]
/** If a rewrite misses more, changes wait for it: they are kept in memory. */
const MAX_MISSED_BYTES = 64 * 1024 * 1024

interface Counter {
  inc(labels: { result: 'written' | 'failed' }): void
}

export interface PersistenceParts {
  readonly disk: Disk
  /** Of the journal. */
  readonly path: string
  readonly stale: StaleMark
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly view: View
  readonly reportsOf: (id: string) => Reports | undefined
  readonly restored: Pick<Restored, 'journal' | 'isComplete'>
  /** When the view was last compared with the store, in milliseconds since 1970. */
  readonly comparedAtMs: number
  /** How long a change waits for the disk. */
  readonly timeoutMs: number
  /** The pause after a failure, in ms. */
  readonly retryMs: number
  readonly journalWrites: Counter
  readonly journalRewrites: Counter
}

type State =
  | { readonly kind: 'closed'; readonly isServed: boolean }
  | { readonly kind: 'open'; readonly journal: JournalWriter }
  | { readonly kind: 'lost' }

const growthOf = (state: State) => (state.kind === 'open' ? state.journal.growth : 0)
const closed = (state: State) => (state.kind === 'open' ? state.journal.close() : undefined)

export class Persistence implements ChangeLog {
  readonly #parts: PersistenceParts
  readonly #queue = buildChangeQueue((changes) => this.#write(changes))
  readonly #schedule: RewriteSchedule
  readonly #name: JournalName
  #state: State
  #rewrite: Rewrite | undefined
  #isRewriteWanted = false
  /** Resolves when work that failed or hangs has ended. No rewrite begins before. */
  #ending: Promise<void> | undefined
  #isComplete: boolean
  #comparedAtMs: number
  #isComparisonDue = false
  #areRangesDue = false
  #problem: JournalProblem | undefined

  constructor(parts: PersistenceParts) {
    this.#parts = parts
    this.#schedule = new RewriteSchedule(parts.retryMs, () => this.#wantRewrite())
    this.#name = new JournalName(parts.disk, parts.path, parts.stale)
    this.#state = { kind: 'closed', isServed: parts.restored.journal === 'served' }
    this.#isComplete = parts.restored.isComplete
    this.#comparedAtMs = parts.comparedAtMs
  }

  async append(change: ViewChange, removesUserData: boolean, apply: () => void): Promise<void> {
    await this.#queue.add(encodeChange(change), () => {
      apply()
      if (removesUserData) this.#schedule.request()
    })
  }

  /** Why the journal cannot be kept, until a rewrite succeeds. */
  get problem(): JournalProblem | undefined {
    return this.#problem
  }

  allApplied(): Promise<void> {
    return this.#queue.allApplied()
  }

  /** Other ranges are unconfirmed than before. A start waits for rules again where that is lost. */
  noteUnconfirmed(): void {
    this.#areRangesDue = true
    this.#queue.wake()
  }

  /** A resync is complete. `atMs`: when it began, in milliseconds since 1970. */
  noteResync(atMs: number): void {
    this.#comparedAtMs = atMs
    this.#isComplete = true
    this.#isComparisonDue = true
    this.#queue.wake()
  }

  /** Makes the rewrite that is due. Waits for the disk as long as that makes progress. */
  async stop(): Promise<void> {
    const isScheduled = this.#schedule.stop()
    try {
      await this.#quiet()
      if (isScheduled || this.#state.kind === 'lost') {
        this.#wantRewrite()
        await this.#quiet()
      }
    } catch {
      /* the disk hangs, and that is reported */
    }
    this.#end(this.#rewrite?.drop(), closed(this.#state))
    await inTime(this.#ending ?? Promise.resolve(), this.#parts.timeoutMs).catch(() => undefined) // the disk hangs: reported
  }

  /** The loop: brings a group of changes to the disk. Called while no other change waits to be applied. */
  async #write(group: readonly Uint8Array[]): Promise<void> {
    const changes = this.#areRangesDue ? [...this.#unconfirmed(), ...group] : group
    const hasChanges = changes.length > 0
    try {
      if (this.#rewrite?.hasEnded === true) {
        const error = await this.#finishRewrite(this.#rewrite)
        if (error !== undefined && this.#state.kind !== 'lost') this.#noteProblem('not-rewritten', error)
      }
      if (this.#isComparisonDue) await this.#compare()
      if (hasChanges && this.#mustWait()) await this.#rewriteNow()
      else if (this.#isRewriteDue()) this.#startRewrite()
      if (hasChanges) await this.#append(changes)
    } catch (error) {
      await this.#giveUp(error)
    }
  }

  /** Which ranges are unconfirmed, after all applied changes and before all others: it confirms nothing that they gain. */
  #unconfirmed(): readonly Uint8Array[] {
    this.#areRangesDue = false
    const ranges = [...this.#parts.view.unconfirmed().values()].map(({ range }) => range)
    return encodeChange({ kind: 'unconfirmed', ranges })
  }

  async #append(changes: readonly Uint8Array[]): Promise<void> {
    const { journalWrites, timeoutMs } = this.#parts
    this.#rewrite?.miss(changes)
    if (this.#state.kind !== 'open') return
    await inTime(this.#state.journal.append(changes), timeoutMs)
    journalWrites.inc({ result: 'written' })
  }

  /**
   * Writes when the view was compared. If that fails, the journal has every change, but its end may be torn: nothing
   * more is appended to it. Rejects if the journal was deleted or changed.
   */
  async #compare(): Promise<void> {
    if (this.#state.kind !== 'open') return // a rewrite has the time
    const { disk, path, view, timeoutMs } = this.#parts
    const { journal } = this.#state
    const { floor } = view.removals
    const lines = encodeChange({ kind: 'compared', atMs: this.#comparedAtMs, isComplete: this.#isComplete, floor })
    this.#isComparisonDue = false
    this.#rewrite?.miss(lines)
    const appended = async () => {
      if ((await disk.sizeOf(path)) !== journal.bytes) return false
      await journal.append(lines)
      return true
    }
    const isAppended = await inTime(appended(), timeoutMs).catch(() => undefined) // a rewrite says what is wrong
    if (isAppended === false) throw new Error(`${path} was deleted or changed by another program`)
    if (isAppended === true) return
    this.#state = { kind: 'closed', isServed: true }
    this.#isRewriteWanted = true
    void journal.close().catch(() => undefined) // it is replaced
  }

  /** Rewrites the journal before a change is applied. Rejects if that fails. */
  async #rewriteNow(): Promise<void> {
    if (this.#rewrite !== undefined) await this.#finishInTime(this.#rewrite)
    if (!this.#mustWait()) return
    if (this.#ending !== undefined) await inTime(this.#ending, this.#parts.timeoutMs)
    const error = await this.#finishInTime(this.#startRewrite())
    if (this.#mustWait()) throw new Error('the journal could not be rewritten', { cause: error })
  }

  #startRewrite(): Rewrite {
    const { disk, path, owner, keys, view, reportsOf } = this.#parts
    this.#isRewriteWanted = this.#isComparisonDue = false
    const changes = snapshotOf(view, reportsOf, this.#comparedAtMs, this.#isComplete)
    return (this.#rewrite = new Rewrite({ disk, path, owner, keys, changes, onEnd: () => this.#queue.wake() }))
  }

  /** Waits for a rewrite as long as it makes progress. */
  async #finishInTime(rewrite: Rewrite): Promise<unknown> {
    await inTime(rewrite.ended, this.#parts.timeoutMs, () => rewrite.steps)
    return this.#finishRewrite(rewrite)
  }

  /** Gives the rewritten journal its name. Returns why it could not be written; rejects if the name is uncertain. */
  async #finishRewrite(rewrite: Rewrite): Promise<unknown> {
    const { timeoutMs, journalRewrites } = this.#parts
    this.#rewrite = undefined
    let isNaming = false
    try {
      rewrite.miss(this.#unconfirmed())
      const journal = await inTime(rewrite.complete(), timeoutMs)
      isNaming = true
      await inTime(this.#name.give(), timeoutMs)
      if (this.#state.kind === 'open') void this.#state.journal.close().catch(() => undefined) // the former journal, which was flushed
      this.#state = { kind: 'open', journal }
    } catch (error) {
      journalRewrites.inc({ result: 'failed' })
      this.#end(rewrite.drop())
      if (isNaming) throw error // it may have got the name, or get it later
      return error
    }
    journalRewrites.inc({ result: 'written' })
    this.#schedule.noteRewrite(performance.now() - rewrite.startedAtMs)
    this.#problem = undefined
    return undefined
  }

  /** Deletes the journal before the view becomes newer than it is. */
  async #giveUp(error: unknown): Promise<void> {
    const { timeoutMs, journalWrites } = this.#parts
    const [state, rewrite] = [this.#state, this.#rewrite]
    this.#state = { kind: 'lost' }
    this.#rewrite = undefined
    this.#isRewriteWanted = false
    journalWrites.inc({ result: 'failed' })
    this.#noteProblem('lost', error)
    const deleted = this.#name.delete()
    const notDeleted = (reason: unknown) => this.#noteProblem('not-deleted', reason)
    this.#end(deleted.catch(notDeleted), rewrite?.drop(), closed(state))
    await inTime(deleted, timeoutMs).catch(notDeleted)
  }

  #end(...work: (Promise<void> | undefined)[]): void {
    const ending = Promise.allSettled([this.#ending, ...work]).then(() => {
      if (this.#ending !== ending) return
      this.#ending = undefined
      this.#schedule.noteFailure()
    })
    this.#ending = ending
  }

  /** A change is not applied before a rewrite. */
  #mustWait(): boolean {
    if (this.#state.kind === 'closed' || growthOf(this.#state) > WAIT_AT_GROWTH) return true
    return this.#rewrite !== undefined && this.#rewrite.missedBytes > MAX_MISSED_BYTES
  }

  #isRewriteDue(): boolean {
    if (this.#rewrite !== undefined || this.#ending !== undefined) return false
    if (this.#isRewriteWanted || (growthOf(this.#state) > REWRITE_AT_GROWTH && this.#problem === undefined)) return true
    // a journal that is not served stays until the view changes
    return this.#state.kind === 'closed' && this.#state.isServed && this.#isComparisonDue
  }

  /** Resolves when nothing is under way. Rejects if the disk hangs. */
  async #quiet(): Promise<void> {
    for (;;) {
      await this.#queue.allApplied()
      const work = this.#rewrite?.ended ?? this.#ending
      if (work === undefined) return
      await inTime(work, this.#parts.timeoutMs, () => this.#rewrite?.steps ?? 0)
    }
  }

  #noteProblem(kind: JournalProblem['kind'], error: unknown): void {
    const { message, cause } = error as Error
    this.#problem = { kind, reason: cause instanceof Error ? `${message}: ${cause.message}` : message }
  }

  #wantRewrite(): void {
    this.#isRewriteWanted = true
    this.#queue.wake()
  }
}
