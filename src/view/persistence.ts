/**
 * Keeps the view on disk, so that a start serves no state that is older than one that a guest has seen.
 *
 *     change -> journal (write, fdatasync) -> view -> guests, firewall, launch gate
 *     fold:     begin a new journal -> write the view as a snapshot that names it -> rename -> delete the older journals
 *
 * A fold happens when the journals are longer than the snapshot, soon after a change that takes user-data away, at the first resync if the snapshot
 * is not as this daemon would write it, and at a clean stop. Guests and the store wait for none of it.
 *
 * If the journal cannot be written, or a write takes too long, changes are made nevertheless, and the files are deleted: the next start then has nothing to
 * serve until the store answers, rather than an old state. From then on a new snapshot is tried twice a minute.
 */
import { mkdir, rename, rm, utimes } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Logger } from 'pino'
import { ChangeQueue } from './change-queue.ts'
import type { Change, ChangeLog } from './change.ts'
import { JournalWriter } from './journal.ts'
import { deleteOldPrevious, type FilesFound, type Restored } from './restore.ts'
import { writeSnapshot } from './snapshot.ts'
import { journalGenerations, journalPath, setAside, syncDirectory, TEMPORARY, type StateKeys, type StateOwner } from './state-files.ts'
import type { Assembled } from './validate.ts'

/** The delay between a change that takes user-data away and the fold, which collects more of them. */
const SETTLE_MS = 200
/** The longest pause after a fold, in ms. It is ten times its duration, so that changes of user-data cause writes in at most about a tenth of the time. */
const MOST_BETWEEN_MS = 30_000
/** Journals up to this length are not folded, however small the snapshot is. */
const SHORT_BYTES = 1024 * 1024
/** The most that journals may have, in multiples of the length at which they are folded. */
const MOST_LENGTHS = 4
const LOST = 'the view cannot be kept on disk: changes reach guests, but a start without the store would answer them with 503. Make room in the state directory, or repair its disk'
const NOT_FOLDED = 'the snapshot cannot be written: changes are only in the journal. Make room in the state directory'

/** What keeping the view needs. `instances` returns what to write. `timeoutMs`: how long a change waits for the disk. */
export interface PersistenceParts {
  readonly path: string
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly restored: Omit<Restored, 'instances' | 'ageMs'>
  readonly maxAgeMs: number
  readonly timeoutMs: number
  readonly instances: () => Iterable<Assembled>
  /** When the view was last compared with the store, in milliseconds since 1970: the snapshot's time, until the first resync. */
  readonly asOfMs: number
  readonly snapshotWrites: { inc(labels: { result: 'written' | 'failed' }): void }
  readonly journalWrites: { inc(labels: { result: 'written' | 'failed' }): void }
  readonly log: Logger
}

/** Keeps the files in step with the view. */
export class Persistence implements ChangeLog {
  readonly #parts: PersistenceParts
  readonly #queue = new ChangeQueue((changes) => this.#write(changes))
  /** The snapshot on the disk and its journals have every change that was made. */
  #isOnDisk: boolean
  /** Files that were found and not served, until they are set aside. */
  #found: FilesFound
  /** The last MAC of the journals, while none is open. */
  #end: string | undefined
  #journal: JournalWriter | undefined
  #generation: number
  /** The bytes of the closed journals that belong to the snapshot on the disk. */
  #closedBytes: number
  #snapshotBytes: number
  /** There are changes that the snapshot on the disk does not have. */
  #isUnfolded: boolean
  #isWhole: boolean
  /** The next completed resync is followed by a fold. */
  #isFoldDue: boolean
  #isFoldWanted = false
  #folding: Promise<void> | undefined
  #deleting: Promise<void> | undefined
  #timer: NodeJS.Timeout | undefined
  #restMs = 0
  #isFailing = false
  /** How often the files were given up: what began before that must not be used. */
  #attempt = 0
  #reported: string | undefined
  #isStopped = false
  #asOfMs: number

  constructor(parts: PersistenceParts) {
    const { files, isWhole, isCurrent, end, snapshotBytes, generation } = parts.restored
    this.#parts = parts
    this.#isOnDisk = files === 'served' && end !== undefined
    this.#found = files
    this.#end = end?.mac
    this.#generation = generation
    this.#closedBytes = end?.bytes ?? 0
    this.#snapshotBytes = snapshotBytes
    this.#isUnfolded = end?.hasChanges === true
    this.#isWhole = isWhole
    this.#isFoldDue = files === 'served' && !(isWhole && isCurrent)
    this.#asOfMs = parts.asOfMs
  }

  async record(change: Change, takesUserData: boolean, make: () => void): Promise<void> {
    await this.#queue.add(change, () => {
      make()
      if (takesUserData) this.#foldAfter(SETTLE_MS + this.#restMs)
    })
  }

  settled(): Promise<void> {
    return this.#queue.settled()
  }

  /** A resync is complete: updates the time of the snapshot. */
  confirmed(): void {
    const { path, maxAgeMs } = this.#parts
    this.#asOfMs = Date.now()
    this.#isWhole = true
    deleteOldPrevious(path, maxAgeMs, this.#asOfMs)
    if (this.#isFoldDue) this.#wantFold()
    else if (this.#isOnDisk) {
      const now = new Date(this.#asOfMs)
      utimes(path, now, now).catch(() => { // the file was removed
        this.#isOnDisk = false
        this.#wantFold()
      })
    }
  }

  /** Folds the changes that are not in the snapshot yet. */
  async stop(): Promise<void> {
    this.#isStopped = true
    clearTimeout(this.#timer)
    await this.#queue.settled()
    await this.#folding?.catch(() => { /* reported */ })
    if (this.#isUnfolded) {
      this.#wantFold()
      await this.#queue.settled()
      await this.#folding?.catch(() => { /* reported */ })
    }
    await this.#journal?.close()
  }

  /** Brings a group of changes to the disk. Called while no other change waits to be made. */
  async #write(changes: readonly Change[]): Promise<void> {
    try {
      if (this.#isFoldNow(changes.length > 0)) await this.#beginFoldInTime()
      if (changes.length === 0) return
      this.#isUnfolded = true
      if (!this.#isOnDisk && !this.#isFailing) await this.#firstFold()
      if (this.#isFailing && this.#journal === undefined) return
      const journal = this.#journal ??= await this.#inTime(this.#nextJournal())
      if (this.#closedBytes + journal.bytes > MOST_LENGTHS * this.#foldBytes()) await this.#waitForRoom()
      await this.#inTime(journal.append(changes))
      this.#parts.journalWrites.inc({ result: 'written' })
    } catch (error) {
      this.#parts.journalWrites.inc({ result: 'failed' })
      await this.#giveUp(error)
    }
  }

  async #beginFoldInTime(): Promise<void> {
    try {
      await this.#inTime(this.#beginFold())
    } catch (error) {
      this.#parts.snapshotWrites.inc({ result: 'failed' })
      throw error
    }
  }

  /** Waits for the snapshot that the first change needs. */
  async #firstFold(): Promise<void> {
    await this.#inTime(this.#folding ?? Promise.resolve())
    if (!this.#isOnDisk) throw new Error('the snapshot could not be written')
  }

  #isFoldNow(hasChanges: boolean): boolean {
    if (this.#folding !== undefined) return false
    if (this.#isFoldWanted) return true
    return hasChanges && !this.#isFailing && (!this.#isOnDisk || this.#closedBytes + (this.#journal?.bytes ?? 0) > this.#foldBytes())
  }

  /**
   * The length of the journals at which they are folded: that of the snapshot, so that a fold writes at most as much as was written since the last one, and
   * the files have at most a multiple of the view's size, however often it changes.
   */
  #foldBytes(): number {
    return Math.max(SHORT_BYTES, this.#snapshotBytes)
  }

  async #waitForRoom(): Promise<void> {
    await this.#inTime(this.#folding ?? Promise.resolve())
    if (this.#closedBytes + this.#journal!.bytes > MOST_LENGTHS * this.#foldBytes()) throw new Error('the journal is too long, because no snapshot could be written')
  }

  /** Begins a journal that continues the last one. Files that were not served make way for the first. */
  async #nextJournal(): Promise<JournalWriter> {
    const { path, owner, keys } = this.#parts
    await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    if (this.#found === 'unserved') await setAside(path)
    else if (this.#found === 'plain') await this.#deleteFiles()
    if (this.#found !== 'served') this.#found = 'none'
    const generation = this.#generation += 1
    const after = this.#isOnDisk ? this.#journal?.end ?? this.#end : undefined
    const attempt = this.#attempt
    const journal = await JournalWriter.create(journalPath(path, generation), { owner, keys, generation, after })
    if (attempt === this.#attempt) return journal
    await journal.close()
    throw new Error('the journal was given up')
  }

  /** Begins a new journal, and then to write the snapshot under it. */
  async #beginFold(): Promise<void> {
    await this.#deleting
    this.#isFoldWanted = false
    const journal = await this.#nextJournal()
    this.#closedBytes += this.#journal?.bytes ?? 0
    await this.#journal?.close()
    this.#journal = journal
    this.#folding = this.#fold(journal, this.#closedBytes).finally(() => {
      this.#folding = undefined
      if (this.#isFoldWanted) this.#queue.wake()
    })
    this.#folding.catch((error: unknown) => { this.#foldFailed(journal, error) })
  }

  /** Writes the snapshot that belongs under a journal. `olderBytes`: the size of the journals before it. */
  async #fold(journal: JournalWriter, olderBytes: number): Promise<void> {
    const { path, owner, keys, instances, snapshotWrites, log } = this.#parts
    const started = performance.now()
    const temporary = path + TEMPORARY
    const isWhole = this.#isWhole
    const asOf = new Date(this.#asOfMs) // the time of what is written, not of a resync that completes meanwhile
    this.#isUnfolded = false
    try {
      const bytes = await writeSnapshot(temporary, { owner, keys, instances: instances(), asOf, isWhole, journal: journal.start })
      if (this.#journal !== journal) throw new Error('the journal of the snapshot was given up')
      await rename(temporary, path)
      await syncDirectory(path)
      this.#snapshotBytes = bytes
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => { /* the first error says more */ })
      throw error
    }
    if (this.#journal !== journal) throw new Error('the journal of the snapshot was given up')
    this.#isOnDisk = true
    this.#isFoldDue = !isWhole
    this.#closedBytes -= olderBytes
    this.#restMs = Math.min(10 * (performance.now() - started), MOST_BETWEEN_MS)
    if (this.#isFailing) log.info({ path }, 'the snapshot can be written again')
    this.#isFailing = false
    this.#reported = undefined
    snapshotWrites.inc({ result: 'written' })
    for (const generation of journalGenerations(path)) if (generation < journal.generation) await rm(journalPath(path, generation), { force: true })
  }

  #foldFailed(journal: JournalWriter, error: unknown): void {
    this.#isUnfolded = true
    this.#parts.snapshotWrites.inc({ result: 'failed' })
    if (this.#journal === journal && !this.#isOnDisk) this.#journal = undefined // it has no snapshot to continue
    if (this.#isOnDisk) this.#report(error, NOT_FOLDED)
    this.#isFailing ||= this.#isOnDisk
    this.#foldAfter(MOST_BETWEEN_MS)
  }

  /** The journal cannot be written: deletes the files, which are about to be older than the view. */
  async #giveUp(error: unknown): Promise<void> {
    this.#attempt += 1
    this.#journal?.close().catch(() => { /* the first error says more */ })
    this.#journal = undefined
    this.#closedBytes = 0
    this.#isOnDisk = false
    this.#isFailing = true
    this.#report(error, LOST)
    this.#deleting = this.#deleteFiles()
    await this.#inTime(this.#deleting).catch((reason: unknown) => {
      this.#parts.log.warn({ err: reason, path: this.#parts.path }, 'the snapshot cannot be deleted, and is older than what guests get: delete it and its journals before the next start')
    })
    this.#deleting = this.#deleting.catch(() => { /* reported */ })
    this.#foldAfter(MOST_BETWEEN_MS)
  }

  async #deleteFiles(): Promise<void> {
    const { path } = this.#parts
    await this.#folding?.catch(() => { /* reported */ })
    await rm(path, { force: true })
    for (const generation of journalGenerations(path)) await rm(journalPath(path, generation), { force: true })
    await syncDirectory(path)
  }

  #report(error: unknown, message: string): void {
    if (this.#reported !== message) this.#parts.log.warn({ err: error, path: this.#parts.path }, message)
    this.#reported = message
  }

  #wantFold(): void {
    this.#isFoldWanted = true
    this.#queue.wake()
  }

  #foldAfter(delayMs: number): void {
    if (this.#timer !== undefined || this.#isStopped) return
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#wantFold()
    }, delayMs)
  }

  /** Rejects when the disk takes too long. */
  async #inTime<T>(work: Promise<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const { timeoutMs } = this.#parts
    const tooLate = new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => { reject(new Error(`the disk did not answer within ${String(timeoutMs)} ms`)) }, timeoutMs)
    })
    try {
      return await Promise.race([work, tooLate])
    } finally {
      clearTimeout(timer)
    }
  }
}
