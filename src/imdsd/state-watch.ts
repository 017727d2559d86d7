/**
 * Checks the state directory from time to time, so that the status page never waits for its disk. One check is in
 * flight at a time: a disk that hangs takes one thread of Node's pool, however often operators load the page.
 */
import { stat, statfs } from 'node:fs/promises'
import { freeBytesIn, stateOf, unseen, type FileState } from './checks/hypervisor-state.ts'
import { journalPath } from './journal/state-files.ts'

/** A check that takes longer finds a disk that hangs. */
const SLOW_MS = 5_000

const NOT_YET: FileState = { kind: 'unseen', code: 'it was not checked yet' }
const HANGS: FileState = { kind: 'unseen', code: 'its disk does not answer' }

/** Watches a state directory. `now`: milliseconds of a monotonic clock. */
export class StateWatch {
  readonly #directory: string
  readonly #now: () => number
  #files: ReadonlyMap<string, FileState> = new Map()
  #freeBytes: number | undefined
  #checkingSinceMs: number | undefined

  constructor(directory: string, now: () => number) {
    this.#directory = directory
    this.#now = now
  }

  /** What was at a path: the directory or its journal. */
  file(path: string): FileState {
    if (this.#checkingSinceMs !== undefined && this.#now() - this.#checkingSinceMs > SLOW_MS) return HANGS
    return this.#files.get(path) ?? NOT_YET
  }

  /** The bytes that were free for the daemon's user. */
  get freeBytes(): number | undefined {
    return this.#freeBytes
  }

  /** Checks, unless a check is in flight. */
  async check(): Promise<void> {
    if (this.#checkingSinceMs !== undefined) return
    this.#checkingSinceMs = this.#now()
    const files = new Map<string, FileState>()
    for (const path of [this.#directory, journalPath(this.#directory)])
      files.set(path, await stat(path).then(stateOf, unseen))
    this.#freeBytes = await statfs(this.#directory).then(freeBytesIn, () => undefined)
    this.#files = files
    this.#checkingSinceMs = undefined
  }
}
