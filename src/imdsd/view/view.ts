/**
 * The instances that this hypervisor serves, found by (network, address).
 *
 * Sync fills the view; the guest server reads it without waiting. It evicts nothing and does no I/O. An instance is
 * added or changed as one frozen object (invariants 3 and 5). An address that two instances claim is served to neither
 * (invariant 7). A path that a change removed still answers for a grace period, so that a crawl that began before the
 * change finds everything that it listed (contract B5). What an option takes away ends at once (E3).
 *
 * An instance that the store no longer has stays (invariant 8), but loses each address that another one claims: most
 * likely it was removed, and its tombstone expired while this hypervisor had no store.
 */
import { randomBytes } from 'node:crypto'
import { UNKNOWN, type Ownership } from '../../metadata/address.ts'
import type { Provider } from '../../metadata/categories.ts'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import type { Content } from '../../metadata/content.ts'
import { buildSeeds, type Seeds } from '../../metadata/seeds.ts'
import { NO_VERSION } from '../../metadata/versions.ts'
import {
  buildTree,
  prepareIdentity,
  removedPaths,
  resolve,
  resolveRemoved,
  resolveSubtree,
  withoutTags,
  type RemovedPaths,
  type Tree,
} from '../../metadata/tree.ts'
import type { ValidRecord } from './validate.ts'
import { AddressIndex } from './address-index.ts'

/** The grace period: how long a removed path still answers. */
const GRACE_MS = 60_000
/** The largest number of former states of an instance that are kept, however often it changes. */
const MAX_FORMER_STATES = 64

/**
 * The owner of a (network, address) on this hypervisor. `contested`: more than one instance claims it, or a prefix that
 * contains it.
 */
export type FoundInstance = Ownership<ServedInstance>

/** Identifies one uninterrupted period of an instance in the view; replaced records keep it. */
export interface Stay {
  /**
   * When it came into the view, in ms of the view's clock. Undefined: by a live migration, since its record named
   * several hypervisors.
   */
  readonly sinceMs: number | undefined
}

/**
 * What is the same for all instances. `now`: monotonic, in ms. `randomKey`: the secret of this daemon's life for
 * `random_seed` (contract H6), which is never written down.
 */
interface ViewContext {
  readonly provider: Provider
  readonly now: () => number
  readonly randomKey: Uint8Array
}

export class ServedInstance {
  readonly instance: Instance
  readonly userData: Uint8Array | undefined
  readonly digest: string | undefined
  readonly stay: Stay
  readonly #context: ViewContext
  #former: readonly FormerState[]
  /** Whether the guest has asked for something since the last call of `forgetIdle`. */
  #hasRequests: boolean
  #tree: Tree | undefined
  #seeds: Seeds | undefined
  /** The last subtree that was asked for: making it costs as much as many requests. */
  #subtree: { readonly version: number; readonly path: string; readonly content: Content | undefined } | undefined

  constructor({ instance, userData, digest }: ValidRecord, context: ViewContext, before: ServedInstance | undefined) {
    this.instance = instance
    this.userData = userData
    this.digest = digest
    this.stay = before?.stay ?? { sinceMs: instance.hypervisors.length > 1 ? undefined : context.now() }
    this.#context = context
    this.#hasRequests = before !== undefined && before.#hasRequests // a change is no request
    this.#former = before === undefined ? [] : this.#formerStates(before)
  }

  /** The content of a path at a version's position, or undefined if there is none. */
  resolve(version: number, path: string): Content | undefined {
    if (version === NO_VERSION) return this.#seed(path)
    const content = resolve(this.#built(), version, path)
    if (content !== undefined || this.#former.length === 0) return content
    const now = this.#context.now()
    for (const { removed, untilMs } of this.#former) {
      const former = now < untilMs ? resolveRemoved(removed, version, path) : undefined
      if (former !== undefined) return former
    }
    return undefined
  }

  /** A directory with everything below it as JSON; undefined if the path is no directory. */
  resolveSubtree(version: number, path: string): Content | undefined {
    if (this.#subtree?.version !== version || this.#subtree.path !== path)
      this.#subtree = { version, path, content: resolveSubtree(this.#built(), version, path) }
    return this.#subtree.content
  }

  /** Makes the content below `dynamic/`, which cannot be read before. Undefined: it is made, or there is none. */
  prepareIdentity(): Promise<void> | undefined {
    return prepareIdentity(this.#built())
  }

  /** Whether a path is in the present tree, and not only in its grace period. */
  has(version: number, path: string): boolean {
    return (version === NO_VERSION ? this.#seed(path) : resolve(this.#built(), version, path)) !== undefined
  }

  /** The size of its tree. */
  get paths(): number {
    return this.#built().size
  }

  /** Forgets what was made for the guest's requests if it has sent none since the last call. */
  forgetIdle(): void {
    if (!this.#hasRequests) {
      this.#former = []
      this.#tree = this.#seeds = this.#subtree = undefined
    }
    this.#hasRequests = false
  }

  /** Built at a request of the guest, because most guests send none. */
  #built(): Tree {
    this.#hasRequests = true
    return this.#build()
  }

  #build(): Tree {
    return (this.#tree ??= buildTree(this.instance, this.userData, this.#context.provider))
  }

  #seed(path: string): Content | undefined {
    this.#hasRequests = true
    const { sealedAt } = this.instance
    this.#seeds ??= buildSeeds(
      this.instance,
      sealedAt === undefined ? this.userData : undefined,
      this.#context.randomKey,
    )
    return this.#seeds.get(path)
  }

  /**
   * Paths that former states listed to the guest and this state lacks, latest first. Empty if the guest has sent no
   * request.
   */
  #formerStates(before: ServedInstance): FormerState[] {
    const now = this.#context.now()
    const states = before.#former.filter(({ untilMs }) => now < untilMs)
    const removed = before.#tree && removedPaths(before.#tree, this.#build())
    if (removed !== undefined && removed.size > 0) states.unshift({ removed, untilMs: now + GRACE_MS })
    const kept =
      this.instance.options.instanceMetadataTags === 'enabled'
        ? states
        : states.map((state) => ({ ...state, removed: withoutTags(state.removed) }))
    return kept.slice(0, MAX_FORMER_STATES)
  }
}

/** Paths that a change removed, and until when they still answer. */
interface FormerState {
  readonly removed: RemovedPaths
  readonly untilMs: number
}

/** A range that an instance of the store owns, although others claim it, which the store no longer has. */
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
  /** The instances that the store no longer has. */
  readonly #unconfirmed = new Set<string>()
  /** The instances that the change under way concerns. */
  readonly #concerned = new Set<string>()
  readonly #onChange: ((id: string) => void)[] = []

  constructor(provider: Provider, now: () => number) {
    this.#context = { provider, now, randomKey: randomBytes(32) }
  }

  /**
   * Adds a function that is called after each change, for the instance that changed and for those whose addresses it
   * claims.
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

  /** Sets whether the store no longer has an instance. True if that is new. */
  setUnconfirmed(id: string, isUnconfirmed: boolean): boolean {
    const served = this.#instances.get(id)
    if (served === undefined || this.#unconfirmed.has(id) === isUnconfirmed) return false
    if (isUnconfirmed) this.#unconfirmed.add(id)
    else this.#unconfirmed.delete(id)
    for (const { network, range } of rangesOf(served.instance)) this.#indexes.get(network)?.yieldChanged(range)
    this.#notify(id)
    return true
  }

  /** Whether the store no longer has an instance. */
  isUnconfirmed(id: string): boolean {
    return this.#unconfirmed.has(id)
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
          (of, owners, losers) => {
            this.#ownersChanged(`${network} ${of}`, owners, losers)
          },
          ({ instance }) => this.#unconfirmed.has(instance.id),
        )
        this.#indexes.set(network, index)
      }
      index.claim(range, served)
    }
  }

  #unclaim(served: ServedInstance): void {
    for (const { network, range } of rangesOf(served.instance)) this.#indexes.get(network)?.unclaim(range, served)
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
