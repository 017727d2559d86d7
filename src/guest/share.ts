/**
 * What is one guest's fair share?
 *
 * A bucket of requests and a number of connections for every instance, however many addresses it has (contract F1): a guest that asks
 * without end is told to wait, and nobody else notices (invariant 6). Strangers share one that is larger: until the view is filled every
 * guest is one. What is remembered is bounded: a share that was not used for a while is full again, and forgotten.
 */

/** What a share is made of. */
export interface Allowance {
  /** So many requests may come at once. */
  readonly burst: number
  /** So many more every second. */
  readonly perSecond: number
  /** So many connections may be open. */
  readonly connections: number
}

/** A guest with many interfaces has a large tree: it may read all of it so many times at once. */
const TREES_AT_ONCE = 5
/** What a guest made us do beyond its share is held against it for no longer than this. */
const MOST_DEBT_SECONDS = 60
/** Of all strangers together. */
export const STRANGERS: Allowance = { burst: 4_000, perSecond: 2_000, connections: 1_024 }

/** What one instance, or all strangers together, may still use. Times are milliseconds that only grow. */
export class Share {
  readonly #allowance: Allowance
  #spent = 0
  #owed = 0
  #atMs = 0
  #connections = 0

  constructor(allowance: Allowance) {
    this.#allowance = allowance
  }

  /** Takes one request out. False, and nothing taken, when there is none left. `paths`: the size of the guest's tree; null for strangers. */
  spend(nowMs: number, guest: { readonly paths: number } | null): boolean {
    this.#settle(nowMs)
    if (this.#spent > this.#allowance.burst - 1 && this.#spent > TREES_AT_ONCE * (guest?.paths ?? 0) - 1) return false
    this.#spent += 1
    return true
  }

  /** Holds a request against it that was made beyond it all the same: its bytes had been read already. */
  charge(): void {
    this.#owed = Math.min(this.#owed + 1, MOST_DEBT_SECONDS * this.#allowance.perSecond)
  }

  /** Whether something is still held against it. */
  isInDebt(nowMs: number): boolean {
    this.#settle(nowMs)
    return this.#owed > 0
  }

  /** A connection was opened: how many there are now, as a part of those that may be. Above 1: too many. */
  opened(): number {
    return ++this.#connections / this.#allowance.connections
  }

  closed(): void {
    this.#connections -= 1
  }

  /** Whether nothing of it is in use. */
  isWhole(nowMs: number): boolean {
    this.#settle(nowMs)
    return this.#connections === 0 && this.#spent === 0 && this.#owed === 0
  }

  #settle(nowMs: number): void {
    const earned = (nowMs - this.#atMs) / 1000 * this.#allowance.perSecond
    this.#spent = Math.max(0, this.#spent - earned)
    this.#owed = Math.max(0, this.#owed - earned)
    this.#atMs = nowMs
  }
}

/** Everybody's share. */
export class Shares {
  /** What all strangers have together. */
  readonly strangers: Share
  readonly #each: Allowance
  readonly #guests = new Map<string, Share>()

  constructor(each: Allowance, strangers: Allowance) {
    this.#each = each
    this.strangers = new Share(strangers)
  }

  /** The share of an instance. */
  of(id: string): Share {
    let share = this.#guests.get(id)
    if (share === undefined) this.#guests.set(id, share = new Share(this.#each))
    return share
  }

  /** Forgets those that are whole. */
  sweep(nowMs: number): void {
    for (const [id, share] of this.#guests) {
      if (share.isWhole(nowMs)) this.#guests.delete(id)
    }
  }

  /** How many instances' shares are remembered. */
  get size(): number {
    return this.#guests.size
  }
}
