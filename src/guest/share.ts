/**
 * The fair share of a peer: a token bucket of requests, one of bytes that are only discarded, and a number of connections (contract F1).
 *
 * An instance has one share for all of its addresses, so a guest that asks too much is slowed down and nobody else is (invariant 6).
 * An unknown peer has a smaller one for its address, or for its /64 of IPv6, since one peer has all addresses of a /64. All unknown peers
 * together have a limit too, of which one peer can take only a fraction; the penalty of one never holds for another. The number of
 * shares in memory is bounded: one that was not used for a while is full again, and forgotten.
 */
import { ipv6Digits } from '../metadata/address.ts'

/** What a share is made of. */
export interface Allowance {
  /** So many requests may come at once. */
  readonly burst: number
  /** So many more every second. */
  readonly perSecond: number
  /** So many connections may be open. */
  readonly connections: number
}

/** What one unknown peer may use, and all of them together. */
export interface UnknownAllowance { readonly each: Allowance, readonly together: Allowance }

/**
 * An unknown peer is only ever answered 503, or becomes a known guest at its first request. `each` is below the questions per second that
 * the store is asked about unknown peers, so that the addresses of one /64 leave some to the others.
 */
export const UNKNOWN_PEERS: UnknownAllowance = {
  each: { burst: 64, perSecond: 32, connections: 16 },
  together: { burst: 4_000, perSecond: 2_000, connections: 1_024 },
}

/** A guest with many interfaces has a large tree: it may read all of it so many times at once. */
const TREES_AT_ONCE = 5
/** A peer that goes on sending requests beyond its share is not read for so long. */
const PENALTY_MS = 5_000
/** A peer that may make a request may also send so many bytes that are read and discarded: one read of them costs less than a request. */
const DISCARDED_PER_REQUEST = 131_072
/** So many shares of unknown peers are remembered, and those with open connections. One takes some 300 bytes. */
const MOST_UNKNOWN = 4_096

/** What one peer, or all unknown peers together, may still use. Times are milliseconds that only grow. */
export class Share {
  readonly #allowance: Allowance
  /** What all peers of a kind have together; null where there is no such limit. */
  readonly #together: Share | null
  #spent = 0
  /** In requests, of DISCARDED_PER_REQUEST bytes. */
  #discarded = 0
  #penaltyUntilMs = 0
  #atMs = 0
  #connections = 0

  constructor(allowance: Allowance, together: Share | null) {
    this.#allowance = allowance
    this.#together = together
  }

  /** Takes one request out. False, and nothing taken, when there is none left. `paths`: the size of the guest's tree; null for unknown peers. */
  spend(nowMs: number, guest: { readonly paths: number } | null): boolean {
    this.#settle(nowMs)
    if (this.#spent > this.#allowance.burst - 1 && this.#spent > TREES_AT_ONCE * (guest?.paths ?? 0) - 1) return false
    if (this.#together !== null && !this.#together.spend(nowMs, null)) return false
    this.#spent += 1
    return true
  }

  /** Takes bytes out that are read and discarded. False when there are none left: then nothing more is to be read. */
  discard(nowMs: number, bytes: number): boolean {
    this.#settle(nowMs)
    if (this.#discarded > this.#allowance.burst - 1) return false
    if (this.#together !== null && !this.#together.discard(nowMs, bytes)) return false
    this.#discarded += bytes / DISCARDED_PER_REQUEST
    return true
  }

  /** Closes it for some seconds. */
  penalize(nowMs: number): void {
    this.#penaltyUntilMs = nowMs + PENALTY_MS
  }

  /** Whether its peer is not to be read for now. */
  isPenalized(nowMs: number): boolean {
    return nowMs < this.#penaltyUntilMs
  }

  /** A connection was opened: how many there are now, as a part of those that may be. Above 1: too many. */
  opened(): number {
    const used = ++this.#connections / this.#allowance.connections
    return this.#together === null || used > 1 ? used : Math.max(used, this.#together.opened())
  }

  closed(): void {
    if (this.#connections <= this.#allowance.connections) this.#together?.closed() // those beyond its share were never counted there
    this.#connections -= 1
  }

  /** Whether a connection of it is open. */
  get isOpen(): boolean {
    return this.#connections > 0
  }

  /** Whether nothing of it is in use. */
  isWhole(nowMs: number): boolean {
    this.#settle(nowMs)
    return this.#connections === 0 && this.#spent === 0 && this.#discarded === 0 && !this.isPenalized(nowMs)
  }

  #settle(nowMs: number): void {
    const earned = (nowMs - this.#atMs) / 1000 * this.#allowance.perSecond
    this.#spent = Math.max(0, this.#spent - earned)
    this.#discarded = Math.max(0, this.#discarded - earned)
    this.#atMs = nowMs
  }
}

/** Everybody's share. */
export class Shares {
  readonly #each: Allowance
  readonly #eachUnknown: Allowance
  readonly #together: Share
  readonly #guests = new Map<string, Share>()
  /** By network and `sourceOf`, the one that was used last at the end. */
  readonly #unknown = new Map<string, Share>()

  constructor(each: Allowance, unknown: UnknownAllowance) {
    this.#each = each
    this.#eachUnknown = unknown.each
    this.#together = new Share(unknown.together, null)
  }

  /** The share of an instance. */
  of(id: string): Share {
    let share = this.#guests.get(id)
    if (share === undefined) this.#guests.set(id, share = new Share(this.#each, null))
    return share
  }

  /** The share of an address that belongs to no instance, or to two. */
  ofUnknown(network: string, address: string): Share {
    const key = `${network} ${sourceOf(address)}`
    let share = this.#unknown.get(key)
    if (share === undefined) {
      if (this.#unknown.size >= MOST_UNKNOWN) this.#evict()
      share = new Share(this.#eachUnknown, this.#together)
    } else this.#unknown.delete(key)
    this.#unknown.set(key, share)
    return share
  }

  /** Forgets those that are whole. */
  sweep(nowMs: number): void {
    for (const shares of [this.#guests, this.#unknown]) {
      for (const [key, share] of shares) {
        if (share.isWhole(nowMs)) shares.delete(key)
      }
    }
  }

  /** How many shares are remembered. */
  get size(): number {
    return this.#guests.size + this.#unknown.size
  }

  /** Forgets the one that was used least recently. One with a connection is kept: its peer would get as many again. */
  #evict(): void {
    for (const [key, share] of this.#unknown) {
      if (share.isOpen) continue
      this.#unknown.delete(key)
      return
    }
  }
}

/** What tells unknown peers apart: an IPv4 address, or the first 64 bits of an IPv6 address. */
export function sourceOf(address: string): string {
  return address.includes(':') ? ipv6Digits(address).slice(0, 16) : address
}
