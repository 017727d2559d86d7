/**
 * The instances that this hypervisor serves, found by (network, address).
 *
 * Sync fills the view; the guest server reads it without waiting. It evicts nothing and does no I/O.
 *
 * All that is published has one order in time, and the view never goes back in it: what removed an instance is
 * remembered like the instance itself (`seen`). An instance that the store no longer has stays (invariant 8). An address
 * belongs to the instance that claimed it last (later-claims.ts). If two of the same order claim it, it is served to
 * neither (invariant 7): both are of before there was an order, or another program wrote them.
 *
 * With a firewall, an address that an instance gains is unconfirmed, and served to nobody, until the rules in the kernel
 * are those of the view after that change, or of a later one (contract E5): by rules of before, its former owner could
 * still send from it.
 */
import { randomBytes } from 'node:crypto'
import { UNKNOWN, type Ownership } from '../../metadata/address.ts'
import type { Provider } from '../../metadata/categories.ts'
import { rangesOf, type Instance, type NetworkRange } from '../../metadata/instance.ts'
import type { LostRange, ValidRecord } from './validate.ts'
import { AddressIndex } from './address-index.ts'
import { settle } from './later-claims.ts'
import { ServedInstance, type ViewContext } from './served-instance.ts'

/**
 * The owner of a (network, address) on this hypervisor. `contested`: more than one instance claims it, or a prefix that
 * contains it.
 */
export type FoundInstance = Ownership<ServedInstance>

/** A range that its owner has gained at a change of the view, in ms of the view's clock. */
export interface Gain {
  readonly range: NetworkRange
  readonly owner: string
  readonly change: number
  readonly sinceMs: number
}

/**
 * What the view has seen removed. `floor`: whatever is not in the view and was published up to this order is gone.
 * For later removals, `removed`: id -> the order of the removal; `freed`: the ranges, each with the order of its claim.
 */
export interface Removals {
  readonly floor: number
  readonly removed: ReadonlyMap<string, number>
  readonly freed: readonly LostRange[]
}

/**
 * All instances that a hypervisor serves. `now` is monotonic, in milliseconds. `waitsForRules`: what an instance gains is
 * unconfirmed at first.
 */
export class View {
  readonly waitsForRules: boolean
  readonly #context: ViewContext
  readonly #instances = new Map<string, ServedInstance>()
  /** By network: which ids own an address. */
  readonly #indexes = new Map<string, AddressIndex>()
  readonly #contested = new Map<string, readonly string[]>()
  /** What was gained since the start, by `network range`, and what of it is unconfirmed. */
  readonly #gained = new Map<string, Gain>()
  readonly #unconfirmed = new Map<string, Gain>()
  #changes = 0
  #floor = 0
  #latest = 0
  readonly #removed = new Map<string, number>()
  /** By `network range`: ranges that their instances have left. A record of before their last claim gets nothing of them. */
  readonly #freed = new Map<string, LostRange>()
  /** The instances that the change under way concerns. */
  readonly #concerned = new Set<string>()
  readonly #onChange: ((id: string) => void)[] = []

  constructor(provider: Provider, now: () => number, waitsForRules: boolean) {
    this.waitsForRules = waitsForRules
    this.#context = { provider, now, randomKey: randomBytes(32) }
  }

  /**
   * Adds a function that is called after each change, for the instance that changed and for those whose addresses it
   * claims or frees.
   */
  onChange(changed: (id: string) => void): void {
    this.#onChange.push(changed)
  }

  /** The instance that has this address on this network. */
  find(network: string, address: string): FoundInstance {
    const found = this.#indexes.get(network)?.find(address) ?? UNKNOWN
    return found.kind === 'owned' ? this.#instances.get(found.owner)!.found : found
  }

  get(id: string): ServedInstance | undefined {
    return this.#instances.get(id)
  }

  ids(): Iterable<string> {
    return this.#instances.keys()
  }

  instances(): IteratorObject<ServedInstance> {
    return this.#instances.values()
  }

  get size(): number {
    return this.#instances.size
  }

  /** The number of changes until now. */
  get changes(): number {
    return this.#changes
  }

  /**
   * Adds an instance, or replaces its former state. It loses the ranges that later instances claim, and earlier ones
   * lose those that it claims: returns their ids.
   */
  replace(added: ValidRecord): readonly string[] {
    const { id } = added.instance
    const before = this.#instances.get(id)
    const known = [...(before?.lost ?? []), ...this.#freed.values()]
    this.#changes += 1
    const { record, losers } = settle(added, known, this.#rivals(added.instance))
    for (const loser of losers) this.#put(loser)
    this.#put(record)
    if (before !== undefined) this.#free(before, rangesOf(record.instance))
    this.#removed.delete(id)
    this.#notify()
    return losers.map(({ instance }) => instance.id)
  }

  /**
   * Forgets what was made for the requests of guests that have sent none since the last call: it is made again when
   * they ask. Two calls must be further apart than the grace period.
   */
  forgetIdle(): void {
    for (const served of this.#instances.values()) served.forgetIdle()
  }

  /** Removes an instance, if the view has it. `order`: of the removal, or of the record that names other hypervisors. */
  remove(id: string, order: number): void {
    this.#latest = Math.max(this.#latest, order)
    if (order > this.#seenRemoved(id)) this.#removed.set(id, order)
    const served = this.#instances.get(id)
    if (served === undefined) return
    this.#changes += 1
    this.#instances.delete(id)
    this.#free(served, [])
    this.#claim(id, served.instance, undefined)
    this.#notify()
  }

  /** Instances have left these ranges, as a file says. */
  restoreFreed(ranges: readonly LostRange[]): void {
    for (const range of ranges) {
      const key = keyOf(range)
      if (range.order > (this.#freed.get(key)?.order ?? this.#floor)) this.#freed.set(key, range)
    }
  }

  /** The ranges that are unconfirmed, by `network range`. */
  unconfirmed(): ReadonlyMap<string, Gain> {
    return this.#unconfirmed
  }

  /** The rules in the kernel are those of the view after this change, or later. True if that confirms a range, or none. */
  noteRules(change: number): boolean {
    const differing = [...this.#gained].filter(([key, gain]) => gain.change <= change === this.#unconfirmed.has(key))
    for (const [key, gain] of differing) {
      const { network, range } = gain.range
      this.#indexOf(network).setConfirmed(range, gain.change <= change)
      this.#gained.set(key, gain)
    }
    this.#concerned.clear() // no record and no owner has changed
    return differing.length > 0
  }

  /** Of all ranges exactly these are unconfirmed, as a file says. */
  setUnconfirmed(ranges: readonly NetworkRange[]): void {
    const keys = new Set(ranges.map(keyOf))
    for (const [key, { range }] of this.#unconfirmed) {
      if (keys.has(key)) continue
      this.#indexOf(range.network).setConfirmed(range.range, true)
      this.#gained.delete(key)
    }
    for (const { network, range } of ranges) this.#indexes.get(network)?.setConfirmed(range, false)
  }

  /**
   * The latest order up to which the view has seen an id: its record, its removal, or all that was published. 0: none. An
   * instance that the store did not have at a comparison may be in the view by an earlier record.
   */
  seen(id: string): number {
    return Math.max(this.#instances.get(id)?.order ?? 0, this.#seenRemoved(id))
  }

  /** The latest order that the view has seen at all. */
  get latest(): number {
    return this.#latest
  }

  /** The view has all that was published up to this order. */
  advance(floor: number): void {
    this.#latest = Math.max(this.#latest, floor)
    this.#floor = Math.max(this.#floor, floor)
    for (const [id, order] of this.#removed) if (order <= this.#floor) this.#removed.delete(id)
    for (const [key, { order }] of this.#freed) if (order <= this.#floor) this.#freed.delete(key)
  }

  get removals(): Removals {
    return { floor: this.#floor, removed: this.#removed, freed: [...this.#freed.values()] }
  }

  /** Addresses and prefixes that more than one instance claims, as `network range`, with the claimants' ids. */
  contested(): ReadonlyMap<string, readonly string[]> {
    return this.#contested
  }

  /** Remembers which ranges an instance has left: all but `kept`. */
  #free({ instance, order }: ServedInstance, kept: readonly NetworkRange[]): void {
    const keys = new Set(kept.map(keyOf))
    const left = rangesOf(instance).filter((range) => !keys.has(keyOf(range)))
    this.restoreFreed(left.map((range) => ({ ...range, order })))
  }

  #seenRemoved(id: string): number {
    return Math.max(this.#removed.get(id) ?? 0, this.#floor)
  }

  /** The other instances that claim a range of an instance, or a part of one. */
  #rivals(instance: Instance): ValidRecord[] {
    const ids = rangesOf(instance).flatMap(({ network, range }) => [
      ...(this.#indexes.get(network)?.claimants(range) ?? []),
    ])
    return [...new Set(ids)].filter((id) => id !== instance.id).map((id) => this.#instances.get(id)!.record)
  }

  #put(record: ValidRecord): void {
    this.#latest = Math.max(this.#latest, record.order)
    const { id } = record.instance
    const before = this.#instances.get(id)
    this.#instances.set(id, new ServedInstance(record, this.#context, before))
    this.#claim(id, before?.instance, record.instance)
  }

  /** Claims the ranges that an instance has gained, and frees those that it has lost. */
  #claim(id: string, before: Instance | undefined, after: Instance | undefined): void {
    this.#concerned.add(id)
    const [freed, claimed] = [before, after].map(
      (instance) => new Map(instance && rangesOf(instance).map((range) => [keyOf(range), range])),
    )
    for (const [key, { network, range }] of freed!)
      if (!claimed!.has(key)) this.#indexes.get(network)!.unclaim(range, id)
    for (const [key, { network, range }] of claimed!) if (!freed!.has(key)) this.#indexOf(network).claim(range, id)
  }

  #indexOf(network: string): AddressIndex {
    const found = this.#indexes.get(network)
    if (found !== undefined) return found
    const index = new AddressIndex(this.waitsForRules, (range, owners, isUnconfirmed) => {
      this.#ownersChanged({ network, range }, owners, isUnconfirmed)
    })
    this.#indexes.set(network, index)
    return index
  }

  #notify(): void {
    const concerned = [...this.#concerned]
    this.#concerned.clear()
    for (const id of concerned) for (const changed of this.#onChange) changed(id)
  }

  #ownersChanged(range: NetworkRange, owners: readonly string[], isUnconfirmed: boolean): void {
    const key = keyOf(range)
    const [owner] = owners
    for (const id of owners) this.#concerned.add(id)
    if (owners.length > 1) this.#contested.set(key, owners)
    else this.#contested.delete(key)
    if (owners.length !== 1) this.#gained.delete(key)
    if (!isUnconfirmed) this.#unconfirmed.delete(key)
    else if (!this.#unconfirmed.has(key)) {
      const gain = { range, owner: owner!, change: this.#changes, sinceMs: this.#context.now() }
      this.#unconfirmed.set(key, gain)
      this.#gained.set(key, gain)
    }
  }
}

function keyOf({ network, range }: NetworkRange): string {
  return `${network} ${range}`
}
