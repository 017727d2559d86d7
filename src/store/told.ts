/**
 * What was the operator told already?
 *
 * Things that stay wrong until somebody mends them: a store that is away or empty, faulty records, instances that the store no longer
 * knows, addresses that two claim.
 * Each is told once for each state of it, and counted as long as it lasts.
 */
import type { Logger } from 'pino'
import type { AssemblyFault } from './assemble.ts'
import type { View } from './view.ts'

/** Remembers what was told. */
export class Told {
  readonly #view: View
  readonly #log: Logger
  readonly #faultCounter: { inc(labels: { reason: AssemblyFault['reason'] }): void }
  /** Id -> the fault that was told last. */
  readonly #faults = new Map<string, string>()
  readonly #unconfirmed = new Set<string>()
  readonly #contested = new Set<string>()
  /** Why the store cannot be used, as told since it was lost. */
  readonly #lossReasons = new Set<string>()
  #isEmptyTold = false

  constructor(view: View, faultCounter: { inc(labels: { reason: AssemblyFault['reason'] }): void }, log: Logger) {
    this.#view = view
    this.#faultCounter = faultCounter
    this.#log = log
  }

  get faulty(): number {
    return this.#faults.size
  }

  get unconfirmed(): number {
    return this.#unconfirmed.size
  }

  isFaulty(id: string): boolean {
    return this.#faults.has(id)
  }

  /** A record is faulty; `digest` tells its states apart. */
  fault(id: string, digest: string, { reason, faults }: AssemblyFault): void {
    const told = JSON.stringify([digest, reason, faults])
    if (this.#faults.get(id) === told) return
    this.#faults.set(id, told)
    this.#faultCounter.inc({ reason })
    const held = this.#view.get(id)
    this.#log.warn({ instance: id, reason, faults, servedRevision: held?.instance.revision ?? null },
      held === undefined ? 'faulty record: this instance is not served' : 'faulty record: the last good one stays')
  }

  /** What the store has of this instance is good, or gone for good. */
  good(id: string): void {
    this.#faults.delete(id)
  }

  /** The store no longer knows an instance of the view. */
  absent(id: string): void {
    if (this.#unconfirmed.has(id)) return
    this.#unconfirmed.add(id)
    const revision = this.#view.get(id)?.instance.revision ?? 1
    const command = `imdsctl remove ${id} --revision ${String(revision)}`
    this.#log.warn({ instance: id }, `the store no longer knows this instance: kept, since absence is not removal. \`${command}\` removes it`)
  }

  /** The store holds nothing at all of this region. */
  allAbsent(store: string): void {
    if (!this.#isEmptyTold) {
      this.#log.warn({ store, instances: this.#view.size }, 'the store holds nothing of this region: a wrong or an emptied one? Keeping what is known')
    }
    this.#isEmptyTold = true
    for (const id of this.#view.ids()) this.#unconfirmed.add(id)
  }

  /** The store holds something of this region. */
  initialised(): void {
    this.#isEmptyTold = false
  }

  /** The store went away, or cannot be used. A new reason since it was lost is worth a line, a repeated one is not. */
  lost(store: string, reason: string, wasConnected: boolean): void {
    const facts = { store, reason, instances: this.#view.size }
    if (wasConnected) this.#log.warn(facts, 'store lost: answering from what is known')
    else if (this.#lossReasons.size === 0) this.#log.warn(facts, 'store not usable: answering from what is known, trying again')
    else this.#log[this.#lossReasons.has(reason) ? 'debug' : 'info'](facts, 'store still not usable')
    this.#lossReasons.add(reason)
  }

  /** The store is there, and its notices flow. */
  connected(store: string): void {
    this.#log.info({ store }, 'store connected')
    this.#lossReasons.clear()
  }

  /** The store knows this instance. */
  present(id: string): void {
    this.#unconfirmed.delete(id)
  }

  /** Forgets faults of ids that the store's index no longer has. */
  keepFaultsOf(known: { has(id: string): boolean }): void {
    for (const id of this.#faults.keys()) {
      if (!known.has(id) && this.#view.get(id) === undefined) this.#faults.delete(id)
    }
  }

  /** Reports addresses that are newly contested. */
  contested(): void {
    const now = this.#view.contested()
    for (const [address, ids] of now) {
      if (this.#contested.has(address)) continue
      this.#contested.add(address)
      this.#log.warn({ address, instances: ids }, 'an address is claimed by more than one instance: answered to none')
    }
    for (const address of this.#contested) {
      if (!now.has(address)) this.#contested.delete(address)
    }
  }
}
