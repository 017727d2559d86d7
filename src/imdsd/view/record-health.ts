/**
 * The health of the records and of the store: which records are faulty, missing or contested, and whether the store can
 * be used.
 *
 * Each state of a problem is logged once, and a problem is counted as long as it lasts.
 */
import type { Log } from '../../runtime/log-codes.ts'
import { unusableAddresses } from '../../metadata/instance.ts'
import type { InvalidRecord } from './validate.ts'
import { formatStoreProblem, storeProblem, type StoreProblem } from './store-problem.ts'
import type { View } from './view.ts'

/** The most records that are logged per reason between two resyncs. The others are counted. */
const MAX_LOGGED = 5

/** What is wrong, and what to do: for the log, and for /readyz. */
export const STORE_BEHIND =
  'Redis has lost changes: it has an earlier state than was served, which is not applied. Guests are served from ' +
  'memory. Publish the region again (imdsctl republish; imds-api does it by itself)'

export class RecordHealth {
  readonly #view: View
  readonly #log: Log
  readonly #faultCounter: { inc(labels: { reason: InvalidRecord['reason'] }): void }
  /** By id. `state` identifies what is wrong with the record. */
  readonly #faults = new Map<string, InvalidRecord & { readonly state: string }>()
  /** Reason -> ids whose faults were logged since the last resync, and how many others were not. */
  readonly #logged = new Map<InvalidRecord['reason'], Set<string>>()
  #notLogged = 0
  #problem: StoreProblem | undefined
  readonly #unconfirmed = new Set<string>()
  /** Ids of which the view has seen a later state than the store has. */
  readonly #behind = new Set<string>()
  #contested: ReadonlySet<string> = new Set()
  /** Ids of instances that have unusable addresses, as of the last resync. */
  #unusable: ReadonlySet<string> = new Set()
  /** The reasons that were logged since the store was lost. */
  readonly #disconnectReasons = new Set<string>()
  /** The store had nothing of this region at the last resync. */
  #isStoreEmpty = false
  /** The region had the mark "behind" at the last resync. */
  #isMarkedBehind = false
  #hint: string | undefined

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

  get unconfirmed(): number {
    return this.#isStoreEmpty ? this.#view.size : this.#unconfirmed.size
  }

  /** Whether the store no longer has an instance of the view. */
  isUnconfirmed(id: string): boolean {
    return this.#isStoreEmpty || this.#unconfirmed.has(id)
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

  /** What an operator should check although the store can be used; undefined: nothing. */
  get hint(): string | undefined {
    if (this.#isStoreEmpty) return this.#unconfirmedHint('the store has nothing of this region')
    return this.#isNamed ? undefined : this.#hint
  }

  #unconfirmedHint(why: string): string | undefined {
    const { size } = this.#view
    return size === 0
      ? undefined
      : `${why}, so none of the served instances (${size}) is confirmed: publish them again, or remove them`
  }

  /** Whether a record names this hypervisor: that of a confirmed instance, or a faulty one. */
  get #isNamed(): boolean {
    return this.#view.size > this.#unconfirmed.size || this.#faults.size > 0
  }

  /**
   * After a resync, reports a hypervisor that no record names, once until one does: it may be new, its name wrong, or
   * the store was emptied. Undefined: it serves every instance.
   */
  reportUnnamed(hypervisor: string | undefined): void {
    if (hypervisor === undefined || this.#isNamed) {
      this.#hint = undefined
      return
    }
    if (this.#hint !== undefined) return
    this.#hint =
      this.#unconfirmedHint(`no record names ${hypervisor}`) ??
      `no record names ${hypervisor}: compare IMDS_HYPERVISOR with \`imdsctl list\`, unless this hypervisor is new`
    this.#log.warn({ code: 'hypervisor-unnamed', instances: this.#view.size }, this.#hint)
  }

  /** Reports a faulty record; a new `digest` is a new state. */
  noteFault(id: string, digest: string | undefined, { reason, faults }: InvalidRecord): void {
    const state = JSON.stringify([digest, reason, faults])
    if (this.#faults.get(id)?.state === state) return
    this.#faults.set(id, { state, reason, faults })
    this.#faultCounter.inc({ reason })
    const served = this.#view.get(id)
    this.#log[this.#levelOf(id, reason)](
      { code: 'record-faulty', instance: id, reason, faults, servedRevision: served?.instance.revision },
      served === undefined
        ? 'faulty record: this instance is not served'
        : 'faulty record: the last good one is still served',
    )
  }

  #levelOf(id: string, reason: InvalidRecord['reason']): 'warn' | 'debug' {
    const logged = this.#logged.get(reason) ?? new Set()
    this.#logged.set(reason, logged)
    if (logged.size < MAX_LOGGED) logged.add(id)
    if (logged.has(id)) return 'warn'
    this.#notLogged += 1
    return 'debug'
  }

  /**
   * Reports on a complete resync, whose index has `named` for this hypervisor: a problem of many records is logged
   * once, with its cause.
   */
  completeResync(named: Iterable<string>): void {
    const ids = [...named]
    const faulty = ids.filter((id) => this.#faults.has(id))
    const before = this.#problem
    const now = (this.#problem = storeProblem(
      ids.length,
      faulty.map((id) => this.#faults.get(id)!.reason),
    ))
    const notLogged = this.#notLogged
    this.#logged.clear()
    this.#notLogged = 0
    if (now !== undefined && now.cause !== before?.cause) {
      const example = { instance: faulty[0], faults: this.#faults.get(faulty[0]!)!.faults }
      this.#log.error(
        { code: 'store-unusable', reasons: now.reasons, example, instances: this.#view.size },
        `${formatStoreProblem(now)}. Not ready; the last good state is served`,
      )
    } else if (notLogged > 0) {
      this.#log.warn(
        { code: 'records-faulty', notLogged, faulty: this.#faults.size },
        'more records are faulty than were logged; IMDS_LOG_LEVEL=debug logs all of them',
      )
    }
    if (now === undefined && before !== undefined)
      this.#log.info(
        { instances: this.#view.size, faulty: this.#faults.size },
        'the records of the store can be used again',
      )
  }

  /**
   * Reports instances of the view whose records have unusable addresses (contract E1), each once. Older
   * publishers accepted them.
   */
  reportUnusableAddresses(): void {
    const all = this.#view.instances().map(({ instance }) => [instance.id, unusableAddresses(instance)] as const)
    const found = new Map(all.filter(([, addresses]) => addresses.length > 0))
    const unreported = [...found].filter(([id]) => !this.#unusable.has(id))
    for (const [instance, addresses] of unreported.slice(0, MAX_LOGGED)) {
      this.#log.warn(
        { code: 'address-unusable', instance, addresses, instances: unreported.length },
        'the record has addresses that cannot identify a guest (unspecified, link-local, multicast or broadcast): ' +
          'the instance is not served on them. Publish it without them',
      )
    }
    this.#unusable = new Set(found.keys())
  }

  /** The record of this instance is good, or was removed. */
  noteGood(id: string): void {
    this.#faults.delete(id)
    this.#behind.delete(id)
  }

  /** The store no longer has an instance of the view. */
  reportUnconfirmed(id: string): void {
    this.noteGood(id)
    if (this.#unconfirmed.has(id)) return
    this.#unconfirmed.add(id)
    const revision = this.#view.get(id)?.instance.revision ?? 1
    const command = `imdsctl remove ${id} --revision ${revision}`
    this.#log.warn(
      { code: 'instance-unconfirmed', instance: id },
      `the store no longer has this instance; it is still served. To remove it, run ${command}`,
    )
  }

  /** The store has an earlier state of an instance than the view has seen, which is not applied. */
  reportBehind(id: string): void {
    const isFirst = !this.isStoreBehind
    this.#faults.delete(id)
    this.notePresent(id)
    this.#behind.add(id)
    if (isFirst) this.#log.warn({ code: 'store-behind', instance: id }, STORE_BEHIND)
  }

  /** `isMarked`: by the index of the store, somebody has seen that it has lost changes. */
  noteMark(isMarked: boolean): void {
    if (isMarked && !this.isStoreBehind) this.#log.warn({ code: 'store-behind' }, STORE_BEHIND)
    this.#isMarkedBehind = isMarked
  }

  /** The store has nothing of this region. */
  reportAllUnconfirmed(store: string): void {
    if (!this.#isStoreEmpty) {
      this.#log.warn(
        { code: 'store-empty', store, instances: this.#view.size },
        'the store has nothing of this region; the instances that are known are still served. ' +
          'Check IMDS_STORE and IMDS_REGION, or run imdsctl init for a new region',
      )
    }
    this.#isStoreEmpty = true
  }

  /** The store has this region. */
  noteInitialised(): void {
    this.#isStoreEmpty = false
  }

  /** The connection to the store was lost, or could not be made. Each reason is logged once at level info or above. */
  reportDisconnected(store: string, reason: string, wasConnected: boolean): void {
    const facts = { code: 'store-lost', store, reason, instances: this.#view.size } as const
    if (wasConnected) this.#log.warn(facts, 'the store is lost; guests are served from memory')
    else if (this.#disconnectReasons.size === 0)
      this.#log.warn(facts, 'the store cannot be used; guests are served from memory, trying again')
    else this.#log[this.#disconnectReasons.has(reason) ? 'debug' : 'info'](facts, 'the store still cannot be used')
    this.#disconnectReasons.add(reason)
  }

  /** The store is connected, and its notices arrive. */
  reportConnected(store: string): void {
    this.#log.info({ store }, 'the store is connected')
    this.#disconnectReasons.clear()
  }

  /** The store has this instance. */
  notePresent(id: string): void {
    this.#unconfirmed.delete(id)
  }

  /** Forgets faults of ids that are neither in the store's index nor in the view. */
  keepFaultsOf(named: { has(id: string): boolean }): void {
    for (const id of [...this.#faults.keys(), ...this.#behind])
      if (!named.has(id) && this.#view.get(id) === undefined) this.noteGood(id)
  }

  /** Reports addresses that are newly contested. */
  reportContested(): void {
    const contested = this.#view.contested()
    for (const [address, ids] of contested) {
      if (!this.#contested.has(address))
        this.#log.warn(
          { code: 'address-contested', address, instances: ids },
          'more than one instance claims an address; none of them is served on it',
        )
    }
    this.#contested = new Set(contested.keys())
  }
}
