/**
 * How far the view is in step with the store: the state of the connection, of the resyncs and of the records, as health
 * checks, metrics and explanations show it.
 */
import type { RecordHealth } from './record-health.ts'
import type { StoreProblem } from './store-problem.ts'

/** The state of the connection to the store, and of the view compared with it. */
export interface SyncStatus {
  readonly connected: boolean
  /** It was connected at some time since the start. */
  readonly wasConnected: boolean
  /** When `connected` changed last, in milliseconds of `performance.now()`. */
  readonly changedAtMs: number
  /** Why it is not connected; undefined while it is, and before the first attempt. */
  readonly disconnectReason: string | undefined
  /** A full resync has completed since the start, and the last one found records that can be used. */
  readonly ready: boolean
  /** The store has nothing of this region. */
  readonly isStoreEmpty: boolean
  /** Why the records of the store cannot be used. */
  readonly storeProblem: StoreProblem | undefined
  /** Why the store could not be read last, until it was. */
  readonly readFailure: string | undefined
  /**
   * When the last completed resync began that found usable records, in milliseconds of `performance.now()`: the view has
   * what the store had then. Undefined before the first.
   */
  readonly resyncedAtMs: number | undefined
  readonly resyncTookMs: number
  /**
   * How long the view has been behind the store, as far as is known: since the oldest notice whose record is not read, or
   * since there was no connection with a full resync after it.
   */
  readonly lagMs: number
  /** Instances of the view that the store no longer has. They stay in the view; an operator should look. */
  readonly absent: number
  /** Ids whose record in the store is faulty now. */
  readonly faulty: number
  /** The store has lost changes: this hypervisor or another one has seen later states than it has. */
  readonly isStoreBehind: boolean
}

/** Keeps the state. Times are milliseconds of `performance.now()`. */
export class SyncState {
  readonly #health: RecordHealth
  #connected = false
  #wasConnected = false
  #changedAtMs = performance.now()
  /** Why the store was lost or could not be reached; undefined before the first attempt. */
  #disconnectReason: string | undefined
  #resyncedAtMs: number | undefined
  #resyncTookMs = 0
  /** No resync has completed since the last connect. */
  #owesResync = true
  #lagSinceMs: number | undefined = performance.now()
  #readFailure: string | undefined

  constructor(health: RecordHealth) {
    this.#health = health
  }

  get isConnected(): boolean {
    return this.#connected
  }

  /** Whether a resync has completed since the start. */
  get wasResynced(): boolean {
    return this.#resyncedAtMs !== undefined
  }

  /** Why the store could not be read; undefined: all is read. */
  noteReadFailure(reason: string | undefined): void {
    this.#readFailure = reason
  }

  noteConnected(): void {
    this.#connected = this.#wasConnected = true
    this.#disconnectReason = undefined
    this.#changedAtMs = performance.now()
  }

  noteDisconnected(reason: string): void {
    if (this.#connected) this.#changedAtMs = performance.now()
    this.#connected = false
    this.#owesResync = true
    this.#disconnectReason = reason
    this.noteLag()
  }

  /** The store may have changes that are not read. */
  noteLag(): void {
    this.#lagSinceMs ??= performance.now()
  }

  /** Everything that the store had at a time is read, as far as is known; undefined: nothing is left to read. */
  noteRead(atMs: number | undefined): void {
    if (!this.#owesResync) this.#lagSinceMs = atMs
  }

  /** A resync that began at a time is complete. `isUsable`: the records of the store can be used. */
  noteResync(beganAtMs: number, isUsable: boolean): void {
    this.#resyncTookMs = performance.now() - beganAtMs
    if (!isUsable) return
    this.#resyncedAtMs = beganAtMs
    if (beganAtMs >= this.#changedAtMs) this.#owesResync = false
  }

  read(): SyncStatus {
    return {
      connected: this.#connected,
      wasConnected: this.#wasConnected,
      changedAtMs: this.#changedAtMs,
      disconnectReason: this.#disconnectReason,
      ready: this.wasResynced && this.#health.problem === undefined,
      isStoreEmpty: this.#health.isStoreEmpty,
      storeProblem: this.#health.problem,
      readFailure: this.#readFailure,
      resyncedAtMs: this.#resyncedAtMs,
      resyncTookMs: this.#resyncTookMs,
      lagMs: this.#lagSinceMs === undefined ? 0 : performance.now() - this.#lagSinceMs,
      absent: this.#health.absent,
      faulty: this.#health.faulty,
      isStoreBehind: this.#health.isStoreBehind,
    }
  }
}
