/**
 * Asks the store about a peer that the view does not know.
 *
 * This is the one case in which a guest's request may ask the store: the notice of its instance was missed. Each address is looked up once
 * however many requests wait for it, for at most a second, and the answer is remembered for a second. The peer is answered only if the
 * record that owns its address names this hypervisor, so that a guest that forges its address learns nothing of other hypervisors'
 * instances. Beyond a fixed rate, or while the store is away, nothing is asked: a flood from unknown addresses costs the store no more
 * than that rate.
 */
import { LRUCache } from 'lru-cache'
import { TokenBucket } from '../runtime/token-bucket.ts'
import type { Found } from './view.ts'

/** Lookups per second, and the burst. A host has some hundred guests, and they do not all boot in the same second. */
const RATE = 100
const PATIENCE_MS = 1000
const MEMORY_MS = 1000
/** Ten times what RATE allows within PATIENCE_MS and MEMORY_MS: no answer is forgotten too early. */
const MAX_REMEMBERED = 4096

/** What a lookup needs. `lookUp` reads the instance that owns an address into the view, `find` is the view's; `now` is monotonic, in milliseconds. */
export interface PeerLookupParts {
  readonly find: (network: string, address: string) => Found
  readonly lookUp: (network: string, address: string) => Promise<void>
  readonly canAsk: () => boolean
  readonly lookups: { inc(labels: { result: 'found' | 'unknown' | 'failed' | 'skipped' }): void }
  readonly now: () => number
}

/** Looks up unknown peers, at a bounded rate. */
export class PeerLookup {
  readonly #parts: PeerLookupParts
  readonly #pending = new Map<string, Promise<Found>>()
  /** Until when each answer is remembered. */
  readonly #answered = new LRUCache<string, number>({ max: MAX_REMEMBERED })
  readonly #rate = new TokenBucket(RATE, RATE)

  constructor(parts: PeerLookupParts) {
    this.#parts = parts
  }

  /** The instance of this hypervisor that owns the address according to the store, within a second; undefined when the store may not be asked now. */
  ask(network: string, address: string): Promise<Found> | undefined {
    const key = `${network} ${address}`
    const pending = this.#pending.get(key)
    if (pending !== undefined) return pending
    if (!this.#mayAsk(key)) {
      this.#parts.lookups.inc({ result: 'skipped' })
      return undefined
    }
    const lookup = this.#lookUp(network, address).finally(() => {
      this.#pending.delete(key)
      this.#answered.set(key, this.#parts.now() + MEMORY_MS)
    })
    this.#pending.set(key, lookup)
    return lookup
  }

  async #lookUp(network: string, address: string): Promise<Found> {
    const { lookUp, find, lookups } = this.#parts
    let timer: NodeJS.Timeout | undefined
    const tooLate = new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => { reject(new Error('no answer in time')) }, PATIENCE_MS)
    })
    try {
      await Promise.race([lookUp(network, address), tooLate])
      const found = find(network, address)
      lookups.inc({ result: found.kind === 'unknown' ? 'unknown' : 'found' })
      return found
    } catch {
      lookups.inc({ result: 'failed' })
      return find(network, address)
    } finally {
      clearTimeout(timer)
    }
  }

  #mayAsk(key: string): boolean {
    const now = this.#parts.now()
    if (!this.#parts.canAsk() || now < (this.#answered.get(key) ?? 0)) return false
    if (!this.#rate.hasToken(now)) return false
    this.#rate.take(1)
    return true
  }
}
