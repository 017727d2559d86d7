/**
 * Whose is an address?
 *
 * Instances claim ranges of a network (see metadata/address.ts). An address belongs to whoever claims the longest range that contains it,
 * unless somebody else claims a range that contains it too: then it is contested (invariant 7). One's own ranges may lie inside each other.
 *
 * Who owns a range is settled when a claim comes or goes. Finding is one look-up by text for IPv4 and for IPv6 addresses that are claimed
 * as such; one more for each prefix length in use for other IPv6 addresses.
 */
import { ipv6Digits } from '../metadata/address.ts'

/** The owner of an address; `contested`: more than one instance claims it. */
export type Ownership<T> = { readonly kind: 'owned', readonly owner: T } | { readonly kind: 'unknown' } | { readonly kind: 'contested' }

/** The ownership of an address that nobody claims. */
export const UNKNOWN = Object.freeze({ kind: 'unknown' })
const CONTESTED = Object.freeze({ kind: 'contested' })

/** A range that is claimed. `ownership`: by all who claim it or a range that contains it. */
interface Claim<T> { readonly range: string, readonly digits: string | null, claimants: readonly T[], ownership: Ownership<T> }

/** The claims of one network. `settled` is called whenever the owners of a range may have changed; none: nobody claims it any longer. */
export class AddressIndex<T> {
  readonly #settled: (range: string, owners: readonly T[]) => void
  readonly #claims = new Map<string, Claim<T>>()
  /** The IPv6 ranges, by their digits. */
  readonly #ipv6 = new Map<string, Claim<T>>()
  /** Their digits in order, so that what a range contains follows it. */
  readonly #order: string[] = []
  /** How many of them have so many digits, and which numbers of digits occur, longest first. */
  readonly #counts = new Map<number, number>()
  #lengths: readonly number[] = []

  constructor(settled: (range: string, owners: readonly T[]) => void) {
    this.#settled = settled
  }

  /** Who owns a canonical address. */
  find(address: string): Ownership<T> {
    return (this.#claims.get(address) ?? this.#longestAround(address))?.ownership ?? UNKNOWN
  }

  /** Adds a claim. */
  claim(range: string, claimant: T): void {
    const claim = this.#claims.get(range) ?? this.#add(range)
    claim.claimants = [...claim.claimants, claimant]
    this.#settle(claim)
  }

  /** Takes a claim back. */
  unclaim(range: string, claimant: T): void {
    const claim = this.#claims.get(range)
    if (claim === undefined) return
    claim.claimants = claim.claimants.filter((other) => other !== claimant)
    if (claim.claimants.length === 0) this.#drop(claim)
    this.#settle(claim)
  }

  #settle(claim: Claim<T>): void {
    const { digits, claimants } = claim
    if (digits === null || claimants.length === 0) this.#tell(claim, claimants)
    if (digits === null) return
    for (const inside of this.#within(digits)) {
      this.#tell(inside, [...new Set(this.#around(inside.digits!).flatMap((around) => around.claimants))])
    }
  }

  #tell(claim: Claim<T>, owners: readonly T[]): void {
    claim.ownership = owners.length === 1 ? { kind: 'owned', owner: owners[0]! } : CONTESTED
    this.#settled(claim.range, owners)
  }

  #longestAround(address: string): Claim<T> | undefined {
    if (this.#lengths.length === 0 || !address.includes(':')) return undefined
    return this.#around(ipv6Digits(address)).next().value
  }

  /** The ranges that contain what has these digits, longest first. */
  * #around(digits: string): Generator<Claim<T>, undefined> {
    for (const length of this.#lengths) {
      const claim = length <= digits.length ? this.#ipv6.get(digits.slice(0, length)) : undefined
      if (claim !== undefined) yield claim
    }
    return undefined
  }

  /** The ranges that lie in the one with these digits, itself included. */
  * #within(digits: string): Generator<Claim<T>> {
    for (let at = this.#place(digits); this.#order[at]?.startsWith(digits) === true; at++) yield this.#ipv6.get(this.#order[at]!)!
  }

  #add(range: string): Claim<T> {
    const digits = range.includes(':') ? ipv6Digits(range) : null
    const claim: Claim<T> = { range, digits, claimants: [], ownership: UNKNOWN }
    this.#claims.set(range, claim)
    if (digits !== null) {
      this.#ipv6.set(digits, claim)
      this.#order.splice(this.#place(digits), 0, digits)
      this.#count(digits.length, 1)
    }
    return claim
  }

  #drop({ range, digits }: Claim<T>): void {
    this.#claims.delete(range)
    if (digits === null) return
    this.#ipv6.delete(digits)
    this.#order.splice(this.#place(digits), 1)
    this.#count(digits.length, -1)
  }

  #count(length: number, change: 1 | -1): void {
    const count = (this.#counts.get(length) ?? 0) + change
    if (count > 0) this.#counts.set(length, count)
    else this.#counts.delete(length)
    if (count === 0 || count === change) this.#lengths = [...this.#counts.keys()].sort((a, b) => b - a)
  }

  /** The place of the first digits in order that are not before these. */
  #place(digits: string): number {
    let [low, high] = [0, this.#order.length]
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#order[middle]! < digits) low = middle + 1
      else high = middle
    }
    return low
  }
}
