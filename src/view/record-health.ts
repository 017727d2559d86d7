/**
 * What was the operator told already?
 *
 * Things that stay wrong until somebody mends them: a store that is away or empty, faulty records, instances that the store no longer
 * knows, addresses that two claim.
 * Each is told once for each state of it, and counted as long as it lasts.
 */
import type { Logger } from 'pino'
import type { AssemblyFault } from './validate.ts'
import { formatStoreProblem, storeProblem, type StoreProblem } from './store-problem.ts'
import type { View } from './view.ts'

/** Between two resyncs, so many faulty records are logged for each reason. The rest is counted: thousands of lines for one cause hide it. */
const MOST_LOGGED = 5

/** What is known of a faulty record. `state` tells its states apart. */
interface KnownFault extends AssemblyFault { readonly state: string }

/** Remembers what was told. */
export class RecordHealth {
  readonly #view: View
  readonly #log: Logger
  readonly #faultCounter: { inc(labels: { reason: AssemblyFault['reason'] }): void }
  readonly #faults = new Map<string, KnownFault>()
  /** Reason -> ids whose faults were logged since the last resync, and how many others were not. */
  readonly #logged = new Map<AssemblyFault['reason'], Set<string>>()
  #notLogged = 0
  #problem: StoreProblem | undefined
  readonly #unconfirmed = new Set<string>()
  readonly #contested = new Set<string>()
  /** Why the store cannot be used, as told since it was lost. */
  readonly #lossReasons = new Set<string>()
  #isEmptyReported = false

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

  /** What is wrong with the record of an id, or undefined. */
  faultOf(id: string): AssemblyFault | undefined {
    return this.#faults.get(id)
  }

  /** Why the store as a whole cannot be used, by the last completed resync. */
  get problem(): StoreProblem | undefined {
    return this.#problem
  }

  /** A record is faulty; `digest` tells its states apart. */
  fault(id: string, digest: string, { reason, faults }: AssemblyFault): void {
    const state = JSON.stringify([digest, reason, faults])
    if (this.#faults.get(id)?.state === state) return
    this.#faults.set(id, { state, reason, faults })
    this.#faultCounter.inc({ reason })
    const served = this.#view.get(id)
    this.#log[this.#levelOf(id, reason)]({ instance: id, reason, faults, servedRevision: served?.instance.revision ?? null },
      served === undefined ? 'faulty record: this instance is not served' : 'faulty record: the last good one stays')
  }

  #levelOf(id: string, reason: AssemblyFault['reason']): 'warn' | 'debug' {
    const logged = this.#logged.get(reason) ?? new Set()
    this.#logged.set(reason, logged)
    if (logged.size < MOST_LOGGED) logged.add(id)
    if (logged.has(id)) return 'warn'
    this.#notLogged += 1
    return 'debug'
  }

  /** A resync is complete: the store's index has `named` for this hypervisor. Reports what concerns many records once, with its cause. */
  resynced(named: Iterable<string>): void {
    const ids = [...named]
    const faulty = ids.filter((id) => this.#faults.has(id))
    const before = this.#problem
    const now = this.#problem = storeProblem(ids.length, faulty.map((id) => this.#faults.get(id)!.reason))
    const notLogged = this.#notLogged
    this.#logged.clear()
    this.#notLogged = 0
    if (now !== undefined && now.cause !== before?.cause) {
      const example = { instance: faulty[0], faults: this.#faults.get(faulty[0]!)!.faults }
      this.#log.error({ reasons: now.reasons, example, instances: this.#view.size }, `${formatStoreProblem(now)}. Not ready; the last good state is served`)
    } else if (notLogged > 0) {
      this.#log.warn({ notLogged, faulty: this.#faults.size }, 'more records are faulty: those not logged here are logged at level debug')
    }
    if (now === undefined && before !== undefined) this.#log.info({ instances: this.#view.size, faulty: this.#faults.size }, 'the records of the store can be used again')
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
    if (!this.#isEmptyReported) {
      this.#log.warn({ store, instances: this.#view.size }, 'the store holds nothing of this region: a wrong or an emptied one? Keeping what is known. (A new region: run imdsctl init)')
    }
    this.#isEmptyReported = true
    for (const id of this.#view.ids()) this.#unconfirmed.add(id)
  }

  /** The store holds something of this region. */
  initialised(): void {
    this.#isEmptyReported = false
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
