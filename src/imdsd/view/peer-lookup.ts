/**
 * Asks the store about a peer that the view does not know.
 *
 * This is the only case in which a guest's request may ask the store: the daemon may have missed the notice of its
 * instance. However many requests wait for an address, it is looked up once, for at most a second, and the result is
 * remembered for a second. The peer is served only if the record that owns its address names this hypervisor, so that a
 * guest that forges its address learns nothing about the instances of other hypervisors. The rate of lookups is
 * limited, so that a flood from unknown addresses does not overload the store. While the store is not connected, there
 * are no lookups.
 */
import { LRUCache } from 'lru-cache'
import { inTime } from '../../limits/in-time.ts'
import { TokenBucket } from '../../limits/token-bucket.ts'
import type { FoundInstance } from './view.ts'

/**
 * Lookups per second, and the burst. A hypervisor has some hundred guests, and they do not all boot in the same second.
 */
const RATE = 100
const TIMEOUT_MS = 1000
const MEMORY_MS = 1000
/** Many times what RATE allows within TIMEOUT_MS and MEMORY_MS, so that no answer is evicted too early. */
const MAX_REMEMBERED = 4096

/**
 * What a lookup needs. `lookUp` reads the instance that owns an address into the view, which `find` searches; `now` is
 * monotonic, in milliseconds.
 */
export interface PeerLookupParts {
  readonly find: (network: string, address: string) => FoundInstance
  readonly lookUp: (network: string, address: string) => Promise<void>
  readonly canAsk: () => boolean
  readonly lookups: { inc(labels: { result: 'found' | 'unknown' | 'failed' | 'skipped' }): void }
  readonly now: () => number
}

/**
 * The instance of this hypervisor that owns an address according to the store, within a second; undefined when the store
 * may not be asked now.
 */
export type PeerLookup = (network: string, address: string) => Promise<FoundInstance> | undefined

export function buildPeerLookup({ find, lookUp, canAsk, lookups, now }: PeerLookupParts): PeerLookup {
  const pending = new Map<string, Promise<FoundInstance>>()
  /** Until when each answer is remembered. */
  const answered = new LRUCache<string, number>({ max: MAX_REMEMBERED })
  const rate = new TokenBucket(RATE, RATE)

  /** Takes a lookup from the rate. False: the store may not be asked now. */
  const takeLookup = (key: string) => canAsk() && now() >= (answered.get(key) ?? 0) && rate.tryTake(now())
  const ask = async (network: string, address: string): Promise<FoundInstance> => {
    try {
      await inTime(lookUp(network, address), TIMEOUT_MS)
      const found = find(network, address)
      lookups.inc({ result: found.kind === 'unknown' ? 'unknown' : 'found' })
      return found
    } catch {
      lookups.inc({ result: 'failed' })
      return find(network, address)
    }
  }
  return (network, address) => {
    const key = `${network} ${address}`
    const running = pending.get(key)
    if (running !== undefined) return running
    if (!takeLookup(key)) {
      lookups.inc({ result: 'skipped' })
      return undefined
    }
    const lookup = ask(network, address).finally(() => {
      pending.delete(key)
      answered.set(key, now() + MEMORY_MS)
    })
    pending.set(key, lookup)
    return lookup
  }
}
