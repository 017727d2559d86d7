/**
 * The journals that are written now, and the snapshot below them.
 *
 *     open -> append, append ... -> rotate -> fold -> append ...
 *     drop: at any moment, for good
 *
 * A chain begins at a start, or after the files were given up, and is dropped as a whole. Dropped work stops at its next
 * step, closes its files, and touches neither this nor the next chain: persistence.ts begins the next one when all work
 * of this one has ended.
 */
import type { SavedInstance } from './encoding.ts'
import type { Removals } from '../view/view.ts'
import type { Disk } from './disk.ts'
import { inTime } from '../../limits/in-time.ts'
import { createJournal, type JournalWriter } from './journal-writer.ts'
import type { Restored } from './restore.ts'
import { writeSnapshot, type SnapshotContent } from './snapshot.ts'
import { journalGenerations, journalPath, TEMPORARY, type StateKeys, type StateOwner } from './state-files.ts'

/** Journals up to this length are not folded, however small the snapshot is. */
const SHORT_BYTES = 1024 * 1024
/** The most that journals may have, in multiples of the length at which they are folded. */
const MAX_JOURNAL_RATIO = 4

/**
 * What a chain needs. `instances` and `removals` return what to write. `nextGeneration` returns each number once. `timeoutMs`: how
 * long a change waits for the disk.
 */
export interface JournalChainParts {
  readonly disk: Disk
  readonly path: string
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly instances: () => Iterable<SavedInstance>
  readonly removals: () => Removals
  readonly nextGeneration: () => number
  readonly timeoutMs: number
}

/** Journals that were found at the start, and are continued: see Restored. */
export type Continued = NonNullable<Restored['end']> & { readonly snapshotBytes: number }

type FoldFacts = Pick<SnapshotContent, 'asOf' | 'isComplete'>

export class JournalChain {
  readonly #parts: JournalChainParts
  /** A snapshot is on the disk, and with the journals it has every change that was applied. */
  isOnDisk: boolean
  isDropped = false
  /** Grows as long as a fold makes progress. */
  steps = 0
  #journal: JournalWriter | undefined
  /** The last MAC of the journals that were found, until one is open. */
  readonly #end: string | undefined
  /** The bytes of the closed journals that belong to the snapshot. */
  #closedBytes: number
  #snapshotBytes: number
  /** The number of groups that were appended, and of those that are in the snapshot. */
  #appended: number
  #folded = 0
  #folding: Promise<void> | undefined
  /** A snapshot is getting its name now, although the chain may be dropped meanwhile. */
  renaming: Promise<void> | undefined
  /** Resolves when a journal that was not completed is removed. */
  #isClean: Promise<void> = Promise.resolve()
  readonly #work = new Set<Promise<unknown>>()

  /** `found` undefined: there is nothing to continue, so call `open` first. */
  constructor(parts: JournalChainParts, found?: Continued) {
    this.#parts = parts
    this.isOnDisk = found !== undefined
    this.#end = found?.mac
    this.#closedBytes = found?.bytes ?? 0
    this.#snapshotBytes = found?.snapshotBytes ?? 0
    this.#appended = found?.hasChanges === true ? 1 : 0
  }

  /** The snapshot was found to be missing. */
  missSnapshot(): void {
    this.isOnDisk = false
  }

  get isFolding(): boolean {
    return this.#folding !== undefined
  }

  /** The snapshot lacks changes. */
  get hasChanges(): boolean {
    return !this.isOnDisk || this.#appended > this.#folded
  }

  /**
   * The journals are to be folded. They are then as long as the snapshot, so a fold writes at most as much as was
   * written since the last one, and the files have at most a multiple of the view's size, however often it changes.
   */
  get isLong(): boolean {
    return this.#bytes > this.#foldBytes
  }

  get isTooLong(): boolean {
    return this.#bytes > MAX_JOURNAL_RATIO * this.#foldBytes
  }

  /** Calls `prepare`, which removes older files, and begins the first journal. */
  open(prepare: () => Promise<void>): Promise<void> {
    return this.#track(this.#open(prepare))
  }

  /** Appends encoded changes. When it resolves they are on the disk. If it rejects, the chain must be dropped. */
  append(changes: readonly Uint8Array[]): Promise<void> {
    return inTime(this.#track(this.#append(changes)), this.#parts.timeoutMs)
  }

  /**
   * Begins the next journal. A last one without changes is used again, so that retries of a fold leave no files. If that
   * fails, the last one stays in use. Not during a fold.
   */
  async rotate(): Promise<void> {
    if (this.isOnDisk && this.#journal?.hasChanges === false) return // without a snapshot, the journal may be missing too
    const { timeoutMs } = this.#parts
    await inTime(this.#isClean, timeoutMs)
    const generation = this.#parts.nextGeneration()
    const attempt = { isWanted: true }
    const creating = this.#track(this.#create(generation, () => attempt.isWanted))
    try {
      const journal = await inTime(creating, timeoutMs)
      const last = this.#journal
      this.#journal = journal
      if (last === undefined) return
      this.#closedBytes += last.bytes
      void this.#track(last.close()).catch(() => undefined) // everything in it was flushed
    } catch (error) {
      attempt.isWanted = false
      this.#isClean = this.#track(this.#remove(creating, generation))
      this.#isClean.catch(() => undefined) // the next append has it
      throw error
    }
  }

  /** Writes the view as the snapshot below the current journal, which has no changes yet. Begins in this turn. */
  fold(facts: FoldFacts): Promise<void> {
    this.#folding = this.#track(this.#fold(this.#journal!, facts)).finally(() => {
      this.#folding = undefined
    })
    return this.#folding
  }

  /**
   * Waits for the fold that is under way, as long as it makes progress. Rejects as it does, and if no snapshot is on
   * the disk then.
   */
  async folded(): Promise<void> {
    await inTime(this.#folding ?? Promise.resolve(), this.#parts.timeoutMs, () => this.steps)
    if (!this.isOnDisk) throw new Error('the snapshot could not be written')
  }

  /** Stops all work. Resolves when it has ended, and all files are closed. */
  async drop(): Promise<void> {
    this.isDropped = true
    while (this.#work.size > 0) await Promise.allSettled(this.#work)
    await this.#journal?.close().catch(() => undefined) // nothing is lost that was flushed
  }

  get #bytes(): number {
    return this.#closedBytes + (this.#journal?.bytes ?? 0)
  }

  get #foldBytes(): number {
    return Math.max(SHORT_BYTES, this.#snapshotBytes)
  }

  async #open(prepare: () => Promise<void>): Promise<void> {
    await prepare()
    this.#check()
    this.#journal = await this.#create(this.#parts.nextGeneration(), () => true)
  }

  async #append(changes: readonly Uint8Array[]): Promise<void> {
    await this.#isClean
    this.#check()
    this.#journal ??= await this.#create(this.#parts.nextGeneration(), () => true)
    this.#check()
    await this.#journal.append(changes)
    this.#appended += 1
  }

  /** Creates a journal that continues the last one. */
  #create(generation: number, isWanted: () => boolean): Promise<JournalWriter> {
    const { disk, path, owner, keys } = this.#parts
    const after = this.#journal?.end ?? this.#end
    return createJournal(disk, journalPath(path, generation), {
      owner,
      keys,
      generation,
      after,
      isWanted: () => isWanted() && !this.isDropped,
    })
  }

  /** Removes a journal whose creation failed, or took too long: no journal may follow the one that is appended to. */
  async #remove(creating: Promise<JournalWriter>, generation: number): Promise<void> {
    const { disk, path } = this.#parts
    const journal = await creating.catch(() => undefined)
    await journal?.close()
    await disk.remove(journalPath(path, generation))
    await disk.syncDirectory(path)
  }

  async #fold(journal: JournalWriter, facts: FoldFacts): Promise<void> {
    const { disk, path, owner, keys, instances, removals } = this.#parts
    const [olderBytes, appended] = [this.#closedBytes, this.#appended]
    const temporary = path + TEMPORARY
    const progress = () => {
      this.steps += 1
      this.#check()
    }
    try {
      const bytes = await writeSnapshot(
        disk,
        temporary,
        { owner, keys, instances: instances(), removals: removals(), ...facts, journal: journal.start },
        progress,
      )
      progress()
      this.renaming = disk.rename(temporary, path).finally(() => {
        this.renaming = undefined
      })
      await this.renaming
      await disk.syncDirectory(path)
      this.#snapshotBytes = bytes
    } catch (error) {
      await disk.remove(temporary).catch(() => undefined) // the first error says more
      throw error
    }
    this.#check()
    this.isOnDisk = true
    this.#closedBytes -= olderBytes
    this.#folded = appended
    await this.#removeBefore(journal.generation).catch(() => undefined) // the next fold tries again
  }

  async #removeBefore(generation: number): Promise<void> {
    const { disk, path } = this.#parts
    for (const older of journalGenerations(await disk.namesBeside(path)))
      if (older < generation) await disk.remove(journalPath(path, older))
  }

  #check(): void {
    if (this.isDropped) throw new Error('the files were given up')
  }

  #track<T>(work: Promise<T>): Promise<T> {
    this.#work.add(work)
    const ended = () => this.#work.delete(work)
    work.then(ended, ended)
    return work
  }
}
