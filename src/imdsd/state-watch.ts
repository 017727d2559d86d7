/**
 * Looks at the state directory and the open files of this process from time to time, so that nobody waits for its disk.
 * One look is in flight at a time: a disk that hangs takes one thread of Node's pool.
 */
import type { Stats, StatsFs } from 'node:fs'
import { readdir, stat, statfs } from 'node:fs/promises'
import { descriptors, readLimits } from '../runtime/listen.ts'
import type { FileState, HostState } from './conditions/state.ts'
import { journalPath } from './journal/state-files.ts'

/** A look that takes longer finds a disk that hangs. */
const SLOW_MS = 5_000

/** Watches a state directory. `now`: milliseconds of a monotonic clock. */
export class StateWatch {
  readonly #directory: string
  readonly #now: () => number
  readonly #maxDescriptors = descriptors(readLimits())
  #last: HostState | undefined
  #checkingSinceMs: number | undefined

  constructor(directory: string, now: () => number) {
    this.#directory = directory
    this.#now = now
  }

  /** What the last look has found; undefined before it. */
  get last(): HostState | undefined {
    const isHanging = this.#checkingSinceMs !== undefined && this.#now() - this.#checkingSinceMs > SLOW_MS
    return this.#last && isHanging
      ? { ...this.#last, directory: { kind: 'unseen', code: 'its disk does not answer' } }
      : this.#last
  }

  /** Looks, unless a look is in flight. */
  async check(): Promise<void> {
    if (this.#checkingSinceMs !== undefined) return
    this.#checkingSinceMs = this.#now()
    const journal = await stat(journalPath(this.#directory)).then(stateOf, unseen)
    this.#last = {
      directory: await stat(this.#directory).then(stateOf, unseen),
      journalBytes: journal.kind === 'file' ? journal.size : 0,
      freeBytes: await statfs(this.#directory).then(freeBytesIn, () => undefined),
      openDescriptors: await readdir('/proc/self/fd').then(
        (open) => open.length,
        () => 0,
      ),
      maxDescriptors: this.#maxDescriptors,
    }
    this.#checkingSinceMs = undefined
  }
}

export function stateOf(file: Stats): FileState {
  const kind = file.isFile() ? 'file' : file.isDirectory() ? 'directory' : 'other'
  return { kind, mode: file.mode, size: file.size }
}

/** `error`: of stat(2). */
export function unseen(error: unknown): FileState {
  return { kind: 'unseen', code: (error as NodeJS.ErrnoException).code ?? String(error) }
}

/** The bytes that are free for other users than root. */
function freeBytesIn({ bavail, bsize, ffree, files }: StatsFs): number {
  return files > 0 && ffree === 0 ? 0 : bavail * bsize // without inodes no file can be created
}
