/**
 * One instance in the view, as an immutable object that a change replaces as a whole (invariants 3 and 5).
 *
 * A path that a change removed still answers for a grace period, so that a crawl that began before the change finds
 * everything that it listed (contract B5). What an option takes away ends at once (E3).
 */
import type { Ownership } from '../../metadata/address.ts'
import type { Provider } from '../../metadata/categories.ts'
import type { Instance } from '../../metadata/instance.ts'
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

/** The grace period: how long a removed path still answers. */
const GRACE_MS = 60_000
/** The largest number of former states of an instance that are kept, however often it changes. */
const MAX_FORMER_STATES = 64

/**
 * What is the same for all instances. `now`: monotonic, in ms. `randomKey`: the secret of this daemon's life for
 * `random_seed` (contract H6), which is never written down.
 */
export interface ViewContext {
  readonly provider: Provider
  readonly now: () => number
  readonly randomKey: Uint8Array
}

export class ServedInstance {
  readonly instance: Instance
  readonly userData: Uint8Array | undefined
  readonly digest: string | undefined
  readonly order: number
  readonly lost: ValidRecord['lost']
  /** What the view answers for its addresses: made once, since every request needs it. */
  readonly found: Ownership<ServedInstance> = { kind: 'owned', owner: this }
  /** Identifies one uninterrupted period in the view; replaced records keep it. */
  readonly stay: object
  readonly #context: ViewContext
  #former: readonly FormerState[]
  /** Whether the guest has asked for something since the last call of `forgetIdle`. */
  #hasRequests: boolean
  #tree: Tree | undefined
  #seeds: Seeds | undefined
  /** The last subtree that was asked for: making it costs as much as many requests. */
  #subtree: { readonly version: number; readonly path: string; readonly content: Content | undefined } | undefined

  constructor(
    { instance, userData, digest, order, lost }: ValidRecord,
    context: ViewContext,
    before: ServedInstance | undefined,
  ) {
    this.instance = instance
    this.userData = userData
    this.digest = digest
    this.order = order
    this.lost = lost
    this.stay = before?.stay ?? {}
    this.#context = context
    this.#hasRequests = before !== undefined && before.#hasRequests // a change is no request
    this.#former = before === undefined ? [] : this.#formerStates(before)
  }

  /** What it was made of. */
  get record(): ValidRecord {
    const { instance, userData, digest, order, lost } = this
    return { instance, userData, digest, order, lost }
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
