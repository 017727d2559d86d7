/**
 * The health of the records: which are faulty, missing or unusable, and whether the store can be used. The conditions of
 * imdsd (imdsd/conditions/) are found in it. Each faulty state of a record is logged once.
 */
import type { Log } from '../../runtime/log-codes.ts'
import type { InvalidRecord } from './validate.ts'
import { storeProblem, type StoreProblem } from './store-problem.ts'
import type { View } from './view.ts'

/** The most records that are logged per reason between two resyncs. The others are counted. */
const MAX_LOGGED = 5

export class RecordHealth {
  readonly #view: View
  readonly #log: Log
  readonly #faultCounter: { inc(labels: { reason: InvalidRecord['reason'] }): void }
  /** By id. `state` identifies what is wrong with the record. */
  readonly #faults = new Map<string, InvalidRecord & { readonly state: string }>()
  /** Reason -> ids whose faults were logged since the last resync. */
  readonly #logged = new Map<InvalidRecord['reason'], Set<string>>()
  #problem: StoreProblem | undefined
  readonly #absent = new Set<string>()
  /** Ids of which the view has seen a later state than the store has. */
  readonly #behind = new Set<string>()
  /** The store had nothing of this region at the last resync. */
  #isStoreEmpty = false
  /** The region had the mark "behind" at the last resync. */
  #isMarkedBehind = false

  constructor(view: View, faultCounter: { inc(labels: { reason: InvalidRecord['reason'] }): void }, log: Log) {
    this.#view = view
    this.#faultCounter = faultCounter
    this.#log = log
  }

  get faulty(): number {
    return this.#faults.size
  }

  get isStoreEmpty(): boolean {
    return this.#isStoreEmpty
  }

  get absent(): number {
    return this.#isStoreEmpty ? this.#view.size : this.#absent.size
  }

  /** Whether the store no longer has an instance of the view. */
  isAbsent(id: string): boolean {
    return this.#isStoreEmpty || this.#absent.has(id)
  }

  /** The store has lost changes: this hypervisor or another one has seen later states than it has. */
  get isStoreBehind(): boolean {
    return this.#isMarkedBehind || this.#behind.size > 0
  }

  /** Whether this hypervisor has seen that. */
  get hasLaterStates(): boolean {
    return this.#behind.size > 0
  }

  /** What is wrong with the record of an id, or undefined. */
  faultOf(id: string): InvalidRecord | undefined {
    return this.#faults.get(id)
  }

  /** All faulty records by id, whether or not their instances are served. */
  faults(): IteratorObject<readonly [string, InvalidRecord]> {
    return this.#faults.entries()
  }

  /** Why the store as a whole cannot be used, by the last completed resync. */
  get problem(): StoreProblem | undefined {
    return this.#problem
  }

  /** Reports a faulty record; a new `digest` is a new state. */
  noteFault(id: string, digest: string | undefined, { reason, faults }: InvalidRecord): void {
    const state = JSON.stringify([digest, reason, faults])
    if (this.#faults.get(id)?.state === state) return
    this.#faults.set(id, { state, reason, faults })
    this.#faultCounter.inc({ reason })
    const served = this.#view.get(id)
    this.#log[this.#levelOf(id, reason)](
      { instance: id, reason, faults, servedRevision: served?.instance.revision },
      served === undefined
        ? 'faulty record: this instance is not served'
        : 'faulty record: the last good one is still served',
    )
  }

  #levelOf(id: string, reason: InvalidRecord['reason']): 'info' | 'debug' {
    const logged = this.#logged.get(reason) ?? new Set()
    this.#logged.set(reason, logged)
    if (logged.size < MAX_LOGGED) logged.add(id)
    return logged.has(id) ? 'info' : 'debug'
  }

  /** A resync is complete, whose index has `named` for this hypervisor. */
  completeResync(named: Iterable<string>): void {
    const ids = [...named]
    const faults = ids.flatMap((id) => this.#faults.get(id) ?? [])
    this.#problem = storeProblem(
      ids.length,
      faults.map(({ reason }) => reason),
    )
    this.#logged.clear()
  }

  /** The record of this instance is good, or was removed. */
  noteGood(id: string): void {
    this.#faults.delete(id)
    this.#behind.delete(id)
  }

  /** The store no longer has an instance of the view. */
  noteAbsent(id: string): void {
    this.noteGood(id)
    this.#absent.add(id)
  }

  /** The store has an earlier state of an instance than the view has seen, which is not applied. */
  noteBehind(id: string): void {
    this.#faults.delete(id)
    this.notePresent(id)
    this.#behind.add(id)
  }

  /** `isMarked`: by the index of the store, somebody has seen that it has lost changes. */
  noteMark(isMarked: boolean): void {
    this.#isMarkedBehind = isMarked
  }

  /** Whether the store has anything of this region. */
  noteStore(isEmpty: boolean): void {
    this.#isStoreEmpty = isEmpty
  }

  /** The store has this instance. */
  notePresent(id: string): void {
    this.#absent.delete(id)
  }

  /** Forgets faults of ids that are neither in the store's index nor in the view. */
  keepFaultsOf(named: { has(id: string): boolean }): void {
    for (const id of [...this.#faults.keys(), ...this.#behind])
      if (!named.has(id) && this.#view.get(id) === undefined) this.noteGood(id)
  }
}
