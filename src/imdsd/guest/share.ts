/**
 * The fair share of a peer: a rate of requests, a rate of bytes that are discarded, and a number of open connections
 * (contract F1).
 *
 * An instance has one share for all of its addresses, so a guest that exceeds it slows down no other (invariant 6). An
 * unknown peer has a smaller share for its address, or for its /64 of IPv6, since one peer owns a whole /64. All
 * unknown peers together have a limit too, and one peer cannot exhaust it.
 *
 * Memory is bounded: a share that is full again is forgotten, and at most MAX_UNKNOWN shares of unknown peers are kept.
 * They are in a Map and not in the library's LRU cache, which would evict a share with open connections: its peer could
 * open as many again.
 */
import { sourceOf } from '../../metadata/address.ts'
import { TokenBucket } from '../../limits/token-bucket.ts'

export interface Allowance {
  /** Requests at once. */
  readonly burst: number
  /** Requests a second after that. */
  readonly perSecond: number
  /** Open connections. */
  readonly connections: number
}

/** The share of one unknown peer, and of all of them together. */
export interface UnknownAllowance {
  readonly perPeer: Allowance
  readonly total: Allowance
}

/**
 * An unknown peer only ever gets 503, or becomes a known guest with its first request. `perPeer` is less than the lookups
 * per second in the store (imdsd/view/peer-lookup.ts), so that the addresses of one /64 leave some to others.
 */
export const UNKNOWN_PEERS: UnknownAllowance = {
  perPeer: { burst: 64, perSecond: 32, connections: 16 },
  total: { burst: 4_000, perSecond: 2_000, connections: 1_024 },
}

/** How many times a guest may read its whole tree at once, however large the tree is. */
const TREES_AT_ONCE = 5
/** The bytes to discard that a peer may send for each request of its share. Reading them costs less than a request. */
const DISCARDED_PER_REQUEST = 131_072
/** How long a peer is not read that has sent a flood of bytes without requests: all of them are parsed. */
const FLOOD_MS = 5_000
/**
 * The number of unknown peers whose shares are kept, besides those with open connections. A share takes some 400 bytes.
 */
const MAX_UNKNOWN = 4_096

/** The characters of target and headers that one request of the share pays for. A header costs as much as HEADER more. */
const HEAD_PER_REQUEST = 2_048
const HEADER = 32

/**
 * How many requests of its share a request takes for its size: reading thousands of characters, or hundreds of headers,
 * costs as much as several plain requests. `rawHeaders`: names and values.
 */
export function priceOf(rawTarget: string, rawHeaders: readonly string[]): number {
  const size = rawHeaders.reduce((sum, text) => sum + text.length, rawTarget.length + (rawHeaders.length / 2) * HEADER)
  return Math.max(1, size / HEAD_PER_REQUEST)
}

/** The share of one peer, or of all unknown peers together. Times are milliseconds of a monotonic clock. */
export class Share {
  readonly #allowance: Allowance
  /** The limit of all peers of a kind; undefined if there is none. */
  readonly #total: Share | undefined
  readonly #requests: TokenBucket
  /** In requests, of DISCARDED_PER_REQUEST bytes each. */
  readonly #discarded: TokenBucket
  #connections = 0

  constructor(allowance: Allowance, total?: Share) {
    this.#allowance = allowance
    this.#total = total
    this.#requests = new TokenBucket(allowance.burst, allowance.perSecond)
    this.#discarded = new TokenBucket(allowance.burst, allowance.perSecond)
  }

  /**
   * Takes one request. If none is left, returns false and takes nothing. `guest.paths`: the size of the guest's tree;
   * undefined for unknown peers.
   */
  spend(nowMs: number, guest?: { readonly paths: number }): boolean {
    const hasToken =
      this.#requests.hasToken(nowMs) ||
      (guest !== undefined && this.#requests.hasToken(nowMs, TREES_AT_ONCE * guest.paths))
    if (!hasToken) return false
    if (this.#total !== undefined && !this.#total.spend(nowMs)) return false
    this.#requests.take(nowMs, 1)
    return true
  }

  /** Takes the cost of a request beyond one, also from an empty share: what follows waits longer. */
  charge(nowMs: number, requests: number): void {
    this.#requests.take(nowMs, requests)
  }

  /** Takes discarded bytes. False if none are left: the peer is not read any more then. */
  discard(nowMs: number, bytes: number): boolean {
    if (!this.#discarded.hasToken(nowMs)) return false
    if (this.#total !== undefined && !this.#total.discard(nowMs, bytes)) return false
    this.#discarded.take(nowMs, bytes / DISCARDED_PER_REQUEST)
    return true
  }

  /** Takes all discarded bytes, and those of the next FLOOD_MS: until then no new connection of the peer is read. */
  noteFlood(nowMs: number): void {
    this.#discarded.takeAll(nowMs, FLOOD_MS)
  }

  /** Counts a new connection. Returns the used part of the limit: 1 = the limit. */
  addConnection(): number {
    const used = ++this.#connections / this.#allowance.connections
    return this.#total === undefined || used > 1 ? used : Math.max(used, this.#total.addConnection())
  }

  removeConnection(): void {
    // connections beyond the peer's own share were not counted in `#total`
    if (this.#connections <= this.#allowance.connections) this.#total?.removeConnection()
    this.#connections -= 1
  }

  /** Whether it has an open connection. */
  get isOpen(): boolean {
    return this.#connections > 0
  }

  /** Whether no part of the share is used. */
  isFull(nowMs: number): boolean {
    return this.#connections === 0 && this.#requests.isFull(nowMs) && this.#discarded.isFull(nowMs)
  }
}

export class Shares {
  readonly #perGuest: Allowance
  readonly #perUnknownPeer: Allowance
  readonly #total: Share
  readonly #guests = new Map<string, Share>()
  /** By network and `sourceOf`, the least recently used first. */
  readonly #unknown = new Map<string, Share>()

  constructor(perGuest: Allowance, unknown: UnknownAllowance) {
    this.#perGuest = perGuest
    this.#perUnknownPeer = unknown.perPeer
    this.#total = new Share(unknown.total)
  }

  of(id: string): Share {
    let share = this.#guests.get(id)
    if (share === undefined) this.#guests.set(id, (share = new Share(this.#perGuest)))
    return share
  }

  /** The share of an unknown peer, or of a contested address. */
  ofUnknown(network: string, address: string): Share {
    const key = `${network} ${sourceOf(address)}`
    let share = this.#unknown.get(key)
    if (share === undefined) {
      if (this.#unknown.size >= MAX_UNKNOWN) this.#evict()
      share = new Share(this.#perUnknownPeer, this.#total)
    } else this.#unknown.delete(key)
    this.#unknown.set(key, share)
    return share
  }

  /** Forgets the shares that are full. */
  sweep(nowMs: number): void {
    for (const shares of [this.#guests, this.#unknown]) {
      for (const [key, share] of shares) {
        if (share.isFull(nowMs)) shares.delete(key)
      }
    }
  }

  get size(): number {
    return this.#guests.size + this.#unknown.size
  }

  /** Forgets the least recently used share without an open connection. */
  #evict(): void {
    for (const [key, share] of this.#unknown) {
      if (share.isOpen) continue
      this.#unknown.delete(key)
      return
    }
  }
}
