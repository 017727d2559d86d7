/**
 * The instances that this hypervisor serves, found by (network, address).
 *
 * Sync fills the view; the guest server reads it without waiting. It evicts nothing and does no I/O. An address that two
 * instances claim is served to neither (invariant 7).
 *
 * An instance that the store no longer has stays (invariant 8), but loses each address that another one claims: most
 * likely it was removed, and its tombstone expired while this hypervisor had no store. Of several such instances, the
 * one that the store lost last has the address: it had it when the store was emptied.
 */
import { randomBytes } from 'node:crypto'
import { UNKNOWN, type Ownership } from '../../metadata/address.ts'
import type { Provider } from '../../metadata/categories.ts'
import { rangesOf } from '../../metadata/instance.ts'
import type { ValidRecord } from './validate.ts'
import { AddressIndex } from './address-index.ts'
import { ServedInstance, type ViewContext } from './served-instance.ts'

/**
 * The owner of a (network, address) on this hypervisor. `contested`: more than one instance claims it, or a prefix that
 * contains it.
 */
export type FoundInstance = Ownership<ServedInstance>

/** A range of which the owners outrank other instances that claim it: the store no longer has those, or lost them before. */
export interface Loss {
  readonly owners: readonly string[]
  readonly losers: readonly string[]
}

/** All instances that a hypervisor serves. `now` is monotonic, in milliseconds. */
export class View {
  readonly #context: ViewContext
  readonly #instances = new Map<string, ServedInstance>()
  /** By network. */
  readonly #indexes = new Map<string, AddressIndex<ServedInstance>>()
  readonly #contested = new Map<string, readonly string[]>()
  readonly #lost = new Map<string, Loss>()
  /** The instances that the store no longer has, each with the number of the loss that it was part of. */
  readonly #unconfirmed = new Map<string, number>()
  #losses = 0
  /** The instances that the change under way concerns. */
  readonly #concerned = new Set<string>()
  readonly #onChange: ((id: string) => void)[] = []

  constructor(provider: Provider, now: () => number) {
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
    return this.#indexes.get(network)?.find(address) ?? UNKNOWN
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

  /** Adds an instance, or replaces its former state. The store has it, as far as is known. */
  replace(record: ValidRecord): void {
    const { id } = record.instance
    const before = this.#instances.get(id)
    const served = new ServedInstance(record, this.#context, before)
    if (before !== undefined) this.#unclaim(before)
    this.#unconfirmed.delete(id)
    this.#instances.set(id, served)
    this.#claim(served)
    this.#notify(id)
  }

  /**
   * Forgets what was made for the requests of guests that have sent none since the last call: it is made again when
   * they ask. Two calls must be further apart than the grace period.
   */
  forgetIdle(): void {
    for (const served of this.#instances.values()) served.forgetIdle()
  }

  /** Removes an instance. False when the view does not have it. */
  remove(id: string): boolean {
    const served = this.#instances.get(id)
    if (served === undefined) return false
    this.#unclaim(served)
    this.#instances.delete(id)
    this.#unconfirmed.delete(id)
    this.#notify(id)
    return true
  }

  /** The store no longer has these instances. True if that is new of one. */
  setUnconfirmed(ids: Iterable<string>): boolean {
    const lost = [...ids].filter((id) => this.#instances.has(id) && !this.#unconfirmed.has(id))
    this.#losses += 1
    for (const id of lost) this.#unconfirmed.set(id, this.#losses)
    for (const id of lost) this.#rankChanged(id)
    return lost.length > 0
  }

  /** The store has an instance. True if it was unconfirmed. */
  setConfirmed(id: string): boolean {
    const wasUnconfirmed = this.#unconfirmed.delete(id)
    if (wasUnconfirmed) this.#rankChanged(id)
    return wasUnconfirmed
  }

  /** Whether the store no longer has an instance. */
  isUnconfirmed(id: string): boolean {
    return this.#unconfirmed.has(id)
  }

  /** Of several instances that claim an address or a link, the one of the highest rank has it. */
  rankOf(id: string): number {
    return this.#unconfirmed.get(id) ?? Infinity
  }

  /** Addresses and prefixes that more than one instance claims, as `network range`, with the claimants' ids. */
  contested(): ReadonlyMap<string, readonly string[]> {
    return this.#contested
  }

  /** Ranges that instances have lost to others, as `network range`. */
  lost(): ReadonlyMap<string, Loss> {
    return this.#lost
  }

  #claim(served: ServedInstance): void {
    for (const { network, range } of rangesOf(served.instance)) {
      let index = this.#indexes.get(network)
      if (index === undefined) {
        index = new AddressIndex(
          (of, owners, losers) => this.#ownersChanged(`${network} ${of}`, owners, losers),
          ({ instance }) => this.rankOf(instance.id),
        )
        this.#indexes.set(network, index)
      }
      index.claim(range, served)
    }
  }

  #unclaim(served: ServedInstance): void {
    for (const { network, range } of rangesOf(served.instance)) this.#indexes.get(network)?.unclaim(range, served)
  }

  #rankChanged(id: string): void {
    for (const { network, range } of rangesOf(this.#instances.get(id)!.instance))
      this.#indexes.get(network)?.rankChanged(range)
    this.#notify(id)
  }

  #notify(id: string): void {
    this.#concerned.add(id)
    const concerned = [...this.#concerned]
    this.#concerned.clear()
    for (const one of concerned) for (const changed of this.#onChange) changed(one)
  }

  #ownersChanged(key: string, owners: readonly ServedInstance[], losers: readonly ServedInstance[]): void {
    const [owning, losing] = [owners, losers].map((of) => of.map(({ instance }) => instance.id)) as [string[], string[]]
    for (const id of [...owning, ...losing]) this.#concerned.add(id)
    if (owning.length > 1) this.#contested.set(key, owning)
    else this.#contested.delete(key)
    if (losing.length > 0) this.#lost.set(key, { owners: owning, losers: losing })
    else this.#lost.delete(key)
  }
}
