/** A journal that is written beside changes, under a temporary name, to replace the present one. */
import type { Reports } from '../../metadata/reports.ts'
import type { View } from '../view/view.ts'
import type { Disk } from './disk.ts'
import type { JournalChange } from './encoding.ts'
import { createJournal, type JournalContent, type JournalWriter } from './journal-writer.ts'
import { temporaryOf } from './state-files.ts'

/** What a rewrite needs. `path`: of the journal that it is to replace. `onEnd`: called when it has ended. */
export interface RewriteParts extends Omit<JournalContent, 'progress'> {
  readonly disk: Disk
  readonly path: string
  readonly onEnd: () => void
}

export class Rewrite {
  readonly startedAtMs = performance.now()
  /** Grows as long as it makes progress. */
  steps = 0
  /** Resolves when all is written and flushed, or that has failed. */
  readonly ended: Promise<void>
  readonly #parts: RewriteParts
  #result:
    | { readonly ok: true; readonly journal: JournalWriter }
    | { readonly ok: false; readonly error: unknown }
    | undefined
  /** The encoded changes since it began. */
  #missed: Uint8Array[] = []
  #missedBytes = 0
  #isDropped = false

  constructor(parts: RewriteParts) {
    this.#parts = parts
    this.ended = this.#write()
      .then(
        (journal) => ({ ok: true as const, journal }),
        (error: unknown) => ({ ok: false as const, error }),
      )
      .then((result) => {
        this.#result = result
        parts.onEnd()
      })
  }

  get hasEnded(): boolean {
    return this.#result !== undefined
  }

  get missedBytes(): number {
    return this.#missedBytes
  }

  /** Adds changes that were made since it began. */
  miss(changes: readonly Uint8Array[]): void {
    this.#missed.push(...changes)
    for (const { length } of changes) this.#missedBytes += length
  }

  /** When it has ended: appends the changes since it began. Rejects if anything could not be written. */
  async complete(): Promise<JournalWriter> {
    const result = this.#result!
    if (!result.ok) throw result.error
    if (this.#missed.length > 0) await result.journal.append(this.#missed)
    return result.journal
  }

  /** Stops it at its next step. Resolves when its file is closed and removed. */
  async drop(): Promise<void> {
    const { disk, path } = this.#parts
    this.#isDropped = true
    this.#missed = []
    await this.ended
    const result = this.#result!
    if (result.ok) await result.journal.close().catch(() => undefined) // its contents are of no use
    await disk.remove(temporaryOf(path)).catch(() => undefined) // the next one, or the next start, replaces it
  }

  async #write(): Promise<JournalWriter> {
    const { disk, path, ...content } = this.#parts
    await disk.makeDirectory(path)
    this.#step()
    return createJournal(disk, temporaryOf(path), { ...content, progress: () => this.#step() })
  }

  #step(): void {
    this.steps += 1
    if (this.#isDropped) throw new Error('the journal was given up')
  }
}

/**
 * The changes that make a view, but for what is unconfirmed. They are taken one by one, while it changes: those since the
 * first must follow, and then what is unconfirmed.
 */
export function snapshotOf(
  view: View,
  reportsOf: (id: string) => Reports | undefined,
  atMs: number,
  isComplete: boolean,
): Iterable<JournalChange> {
  const { floor, removed, freed } = view.removals
  const removals = [...removed] // a comparison meanwhile would forget some
  return (function* () {
    if (freed.length > 0) yield { kind: 'freed', ranges: freed }
    for (const [id, order] of removals) yield { kind: 'remove', id, order }
    for (const { record } of view.instances()) {
      const { id } = record.instance
      yield { kind: 'replace', record }
      const reports = reportsOf(id)
      if (reports !== undefined) yield { kind: 'reported', id, reports }
    }
    yield { kind: 'compared', atMs, isComplete, floor }
  })()
}
