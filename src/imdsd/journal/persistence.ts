/**
 * Keeps the files in step with the view: its states are those of journal.ts. Only the queue's loop (#write) changes the
 * state; work in the background passes its end to it.
 */
import type { Log, LogCode } from '../../runtime/log-codes.ts'
import { BackgroundWork } from './background-work.ts'
import { buildChangeQueue } from './change-queue.ts'
import { buildFoldSchedule, type FoldSchedule } from './fold-schedule.ts'
import type { ViewChange, ChangeLog } from '../view/change.ts'
import { JournalChain, type JournalChainParts } from './journal-chain.ts'
import { inTime } from '../../limits/in-time.ts'
import type { FilesFound, Restored } from './restore.ts'
import type { StaleMark } from './stale-mark.ts'
import { deleteFiles, deleteOldPrevious, setAside } from './state-files.ts'

const LOST =
  'the view cannot be kept on disk: guests get every change, but after a start without the store they get 503. ' +
  'Make room in the state directory, or repair its disk'
const NOT_DELETED =
  'the snapshot cannot be deleted, and is older than what guests get: delete it and its journals before a reboot'
const NOT_MARKED =
  'the snapshot cannot be deleted, and is older than what guests get: delete it and its journals before the next start'
const NOT_FOLDED = 'the snapshot cannot be written: changes are only in the journal. Make room in the state directory'

interface Counter {
  inc(labels: { result: 'written' | 'failed' }): void
}

export interface PersistenceParts extends Omit<JournalChainParts, 'nextGeneration'> {
  readonly restored: Omit<Restored, 'instances' | 'removals' | 'ageMs'>
  readonly maxAgeMs: number
  readonly stale: StaleMark
  /**
   * When the view was last compared with the store, in milliseconds since 1970: the snapshot's time, until the first
   * resync.
   */
  readonly asOfMs: number
  readonly snapshotWrites: Counter
  readonly journalWrites: Counter
  /** The pause after a failure, in ms. */
  readonly retryMs: number
  readonly log: Log
}

/** `isFirst`: no snapshot of this view is on the disk yet: a change waits for it. */
type State =
  | { readonly kind: 'idle' | 'clearing' | 'resting' | 'opening' }
  | { readonly kind: 'kept'; readonly chain: JournalChain; readonly isFirst: boolean }

export class Persistence implements ChangeLog {
  readonly #parts: PersistenceParts
  readonly #queue = buildChangeQueue((changes) => this.#write(changes))
  #state: State
  /** The files that are removed before the first journal of a chain. */
  #found: FilesFound
  #generation: number
  #isComplete: boolean
  #asOfMs: number
  #foldsAtResync: boolean
  #isFoldWanted = false
  readonly #schedule: FoldSchedule
  /** The warnings since the last snapshot was written. */
  readonly #problems = new Set<string>()
  readonly #background = new BackgroundWork(() => this.#queue.wake())
  #isTidyDue = false
  #isTidying = false

  constructor(parts: PersistenceParts) {
    const { files, isComplete, isCurrent, end, snapshotBytes, generation } = parts.restored
    this.#parts = parts
    this.#schedule = buildFoldSchedule(parts.retryMs, () => this.#wantFold())
    this.#found = files
    this.#generation = generation
    this.#state =
      end === undefined
        ? { kind: 'idle' }
        : { kind: 'kept', chain: new JournalChain(this.#chainParts(), { ...end, snapshotBytes }), isFirst: false }
    this.#isComplete = isComplete
    this.#foldsAtResync = files === 'served' && !(isComplete && isCurrent)
    this.#asOfMs = parts.asOfMs
  }

  async append(change: ViewChange, removesUserData: boolean, apply: () => void): Promise<void> {
    await this.#queue.add(change, () => {
      apply()
      if (removesUserData) this.#schedule.request()
    })
  }

  allApplied(): Promise<void> {
    return this.#queue.allApplied()
  }

  whenIdle(task: () => void): Promise<void> {
    return this.#queue.whenIdle(task)
  }

  /** A resync is complete: updates the time of the snapshot. `asOfMs`: when it began, in milliseconds since 1970. */
  noteResync(asOfMs: number): void {
    this.#asOfMs = asOfMs
    this.#isComplete = true
    this.#isTidyDue = true
    if (this.#foldsAtResync && (this.#state.kind === 'idle' || this.#state.kind === 'kept')) this.#isFoldWanted = true
    this.#queue.wake()
  }

  /** Folds what is not in the snapshot yet. Waits for the disk as long as that makes progress. */
  async stop(): Promise<void> {
    const isFoldScheduled = this.#schedule.stop()
    try {
      await this.#quiet()
      if (this.#state.kind === 'kept' ? isFoldScheduled || this.#state.chain.hasChanges : this.#state.kind !== 'idle') {
        this.#wantFold()
        await this.#quiet()
      }
    } catch {
      /* the disk hangs, and that is reported */
    }
    if (this.#state.kind === 'kept')
      await inTime(this.#state.chain.drop(), this.#parts.timeoutMs).catch(() => undefined) // the same
  }

  /** The loop: brings a group of changes to the disk. Called while no other change waits to be applied. */
  async #write(changes: readonly Uint8Array[]): Promise<void> {
    await this.#background.handleEnds()
    const hasChanges = changes.length > 0
    if (this.#state.kind === 'idle' && (hasChanges || this.#isFoldWanted)) await this.#openFirst()
    if (this.#state.kind === 'resting' && this.#isFoldWanted) this.#openAgain()
    if (this.#state.kind === 'idle' && this.#isTidyDue && !this.#isTidying) this.#tidy(undefined)
    if (this.#state.kind !== 'kept') return
    const { chain, isFirst } = this.#state
    const isFoldNeeded = hasChanges && chain.isLong && this.#problems.size === 0
    if (!chain.isFolding && !this.#isTidying && (this.#isFoldWanted || isFoldNeeded)) await this.#fold(chain)
    if (this.#isTidyDue && !this.#isTidying && !chain.isFolding && !chain.isDropped) this.#tidy(chain)
    if (!hasChanges || chain.isDropped) return
    try {
      if (isFirst && !chain.isOnDisk) await chain.folded()
      if (chain.isTooLong && !(await this.#shorten(chain))) return
      await chain.append(changes)
      this.#parts.journalWrites.inc({ result: 'written' })
    } catch (error) {
      await this.#giveUp(chain, error)
    }
  }

  /**
   * Folds journals that are too long for another change, also if the last fold failed. False if the chain was dropped.
   */
  async #shorten(chain: JournalChain): Promise<boolean> {
    await this.#backgroundEnded()
    await this.#background.handleEnds()
    // one that ran until now lacks what was appended meanwhile
    if (!chain.isDropped && chain.isTooLong) await this.#fold(chain)
    let cause: unknown
    await chain.folded().catch((error: unknown) => {
      cause = error
    })
    if (!chain.isDropped && chain.isTooLong)
      throw new Error('the journal is too long, because no snapshot could be written', { cause })
    return !chain.isDropped
  }

  /** idle -> kept, or clearing. */
  async #openFirst(): Promise<void> {
    const chain = new JournalChain(this.#chainParts())
    this.#state = { kind: 'kept', chain, isFirst: true }
    try {
      await inTime(this.#open(chain), this.#parts.timeoutMs)
      this.#startFold(chain)
    } catch (error) {
      this.#parts.snapshotWrites.inc({ result: 'failed' })
      await this.#giveUp(chain, error)
    }
  }

  /** resting -> opening -> kept, or clearing. */
  #openAgain(): void {
    const chain = new JournalChain(this.#chainParts())
    this.#isFoldWanted = false
    this.#state = { kind: 'opening' }
    this.#background.start(this.#open(chain), async (failure) => {
      if (failure !== undefined) {
        this.#parts.snapshotWrites.inc({ result: 'failed' })
        return this.#giveUp(chain, failure.error)
      }
      this.#state = { kind: 'kept', chain, isFirst: false }
      this.#startFold(chain)
    })
  }

  async #open(chain: JournalChain): Promise<void> {
    await chain.open(() => this.#setFilesAside())
    this.#parts.stale.clear()
  }

  /** Begins a new journal, and then to write the snapshot below it. */
  async #fold(chain: JournalChain): Promise<void> {
    this.#isFoldWanted = false
    try {
      await chain.rotate()
    } catch (error) {
      this.#parts.snapshotWrites.inc({ result: 'failed' })
      return this.#foldFailed(chain, error)
    }
    this.#startFold(chain)
  }

  #startFold(chain: JournalChain): void {
    const startedMs = performance.now()
    const isComplete = this.#isComplete
    this.#isFoldWanted = false
    // asOf is the time of what is written, not of a resync that completes meanwhile.
    this.#background.start(chain.fold({ asOf: new Date(this.#asOfMs), isComplete }), async (failure) => {
      this.#parts.snapshotWrites.inc({ result: failure === undefined ? 'written' : 'failed' })
      if (chain.isDropped) return
      if (failure !== undefined) return this.#foldFailed(chain, failure.error)
      this.#foldsAtResync = !isComplete
      if (this.#foldsAtResync && this.#isComplete) this.#isFoldWanted = true // a resync completed meanwhile
      this.#schedule.noteFold(performance.now() - startedMs)
      if (this.#problems.size > 0) this.#parts.log.info({ path: this.#parts.path }, 'the snapshot can be written again')
      this.#problems.clear()
    })
  }

  /** The journals still have every change, if there is a snapshot below them. */
  async #foldFailed(chain: JournalChain, error: unknown): Promise<void> {
    if (!chain.isOnDisk) return this.#giveUp(chain, error)
    this.#warn('snapshot-not-written', NOT_FOLDED, error)
    this.#schedule.noteFailure()
  }

  /** kept or opening -> clearing -> resting. */
  async #giveUp(chain: JournalChain, error: unknown): Promise<void> {
    const { stale } = this.#parts
    this.#state = { kind: 'clearing' }
    stale.set()
    this.#parts.journalWrites.inc({ result: 'failed' })
    this.#warn('view-not-kept', LOST, error)
    if (this.#found === 'served') this.#found = 'none'
    const ended = chain.drop()
    const cleared = this.#clear(chain, ended)
    const failed = (reason: unknown) =>
      this.#warn('snapshot-not-deleted', stale.isSet ? NOT_DELETED : NOT_MARKED, reason)
    const again = cleared
      .catch(() => undefined) // reported below
      .then(() => ended)
      .then(() => this.#setFilesAside())
    this.#background.start(again, (failure) => {
      if (failure !== undefined) failed(failure.error)
      this.#state = { kind: 'resting' }
      this.#isFoldWanted = false
      this.#schedule.noteFailure()
    })
    await inTime(cleared, this.#parts.timeoutMs).catch(failed)
  }

  /**
   * Deletes the files before the view becomes newer than they are. Does not wait for work of the chain that is still
   * ending.
   */
  async #clear(chain: JournalChain, ended: Promise<void>): Promise<void> {
    if (this.#found === 'unserved') await ended // another hypervisor may need them: only one at a time moves them
    await this.#setFilesAside()
    if (chain.renaming === undefined) return
    await chain.renaming.catch(() => undefined) // then there is no file
    await this.#setFilesAside()
  }

  /** Removes what must not be on the disk beside a new journal. Files that another owner may need are set aside. */
  async #setFilesAside(): Promise<void> {
    const { disk, path } = this.#parts
    // files that are served stay: the new snapshot replaces them
    if (this.#found !== 'served') {
      if (this.#found === 'unserved') await setAside(disk, path)
      else await deleteFiles(disk, path)
      this.#found = 'none'
    }
    await disk.makeDirectory(path)
  }

  /**
   * Renews the time of the snapshot, and deletes what was set aside long ago. One at a time, and not beside a fold: on
   * a disk that hangs, each takes one of the four threads that Node has for files and host names.
   */
  #tidy(chain: JournalChain | undefined): void {
    const { disk, path, maxAgeMs } = this.#parts
    this.#isTidying = true
    this.#isTidyDue = false
    const asOfMs = this.#asOfMs
    const tidying = (async () => {
      try {
        if (chain?.isOnDisk === true) await disk.setTime(path, new Date(asOfMs))
      } finally {
        await deleteOldPrevious(disk, path, maxAgeMs, asOfMs)
      }
    })()
    this.#background.start(tidying, (failure) => {
      this.#isTidying = false
      if (failure === undefined || chain === undefined) return
      if ((failure.error as NodeJS.ErrnoException).code === 'ENOENT') chain.missSnapshot()
      this.#isFoldWanted = true // a new file has the time
    })
  }

  #chainParts(): JournalChainParts {
    return { ...this.#parts, nextGeneration: () => (this.#generation += 1) }
  }

  /** Resolves when the work in the background has ended. Rejects if the disk hangs. */
  async #backgroundEnded(): Promise<void> {
    await this.#background.ended(this.#parts.timeoutMs, () =>
      this.#state.kind === 'kept' ? this.#state.chain.steps : 0,
    )
  }

  /** Resolves when nothing is under way. Rejects if the disk hangs. */
  async #quiet(): Promise<void> {
    await this.#queue.allApplied()
    while (this.#background.isRunning) {
      await this.#backgroundEnded()
      await this.#queue.allApplied()
    }
  }

  /** Each warning is logged once until a snapshot is written. */
  #warn(code: LogCode, message: string, error: unknown): void {
    if (!this.#problems.has(code)) this.#parts.log.warn({ code, err: error, path: this.#parts.path }, message)
    this.#problems.add(code)
  }

  #wantFold(): void {
    this.#isFoldWanted = true
    this.#queue.wake()
  }
}
