/**
 * Which instance owns an address.
 *
 * Instances claim ranges of a network (see metadata/address.ts): addresses and IPv6 prefixes. An address belongs to the
 * instance whose range contains it. If ranges of two instances contain it, it is contested (invariant 7). Ranges of one
 * instance may contain each other.
 *
 * With a firewall, a range that an instance gains is unconfirmed until `confirm` is called: the kernel may still admit
 * its former owner there. What a new range takes from a confirmed one around it of the same instance is not gained.
 *
 * Owners are computed when a claim is added or removed. For an IPv4 address, and for an IPv6 address that is claimed
 * itself, `find` takes one lookup by text. For any other IPv6 address it takes one more lookup for each prefix length
 * in use.
 */
import { CONTESTED, ipv6Digits, UNCONFIRMED, UNKNOWN, type Ownership } from '../../metadata/address.ts'

/** The digits of an IPv6 address. */
const MAX_DIGITS = 32

/** A claimed range. */
interface Claim {
  readonly range: string
  readonly digits: string | undefined
  /** The ids of instances. */
  claimants: readonly string[]
  /** Those of this range and of the ranges that contain it. */
  owners: readonly string[]
  /** The owner of which the rules are confirmed. */
  confirmed: string | undefined
  ownership: Ownership<string>
}

/**
 * Called when the owners of a range may have changed: none if no instance claims it any more, several if it is
 * contested.
 */
export type OwnersChanged = (range: string, owners: readonly string[], isUnconfirmed: boolean) => void

/** The claims of one network. An instance claims a range once. `waits`: what is gained is unconfirmed. */
export class AddressIndex {
  readonly #changed: OwnersChanged
  readonly #waits: boolean
  readonly #claims = new Map<string, Claim>()
  /** The claims of IPv6 ranges, by their digits. */
  readonly #ipv6 = new Map<string, Claim>()
  /** The keys of #ipv6 in order: the ranges inside a range follow it. */
  readonly #order: string[] = []
  /** How many ranges have each number of digits. */
  readonly #counts = new Uint32Array(MAX_DIGITS + 1)

  constructor(waits: boolean, changed: OwnersChanged) {
    this.#waits = waits
    this.#changed = changed
  }

  /** Who owns a canonical address. */
  find(address: string): Ownership<string> {
    return (this.#claims.get(address) ?? this.#longestAround(address))?.ownership ?? UNKNOWN
  }

  claim(range: string, id: string): void {
    const claim = this.#claims.get(range) ?? this.#add(range)
    claim.claimants = [...claim.claimants, id]
    this.#updateOwners(claim)
  }

  unclaim(range: string, id: string): void {
    const claim = this.#claims.get(range)
    if (claim === undefined) return
    claim.claimants = claim.claimants.filter((other) => other !== id)
    if (claim.claimants.length === 0) this.#drop(claim)
    this.#updateOwners(claim)
  }

  /** Whether the rules in the kernel give a range to its owner alone. */
  setConfirmed(range: string, isConfirmed: boolean): void {
    const claim = this.#claims.get(range)
    if (claim?.owners.length !== 1) return
    claim.confirmed = isConfirmed ? claim.owners[0] : undefined
    this.#setOwners(claim, claim.owners)
  }

  /** Who claims a range, a part of it, or a range around it. */
  claimants(range: string): ReadonlySet<string> {
    if (!range.includes(':')) return new Set(this.#claims.get(range)?.claimants)
    const digits = ipv6Digits(range)
    return new Set([...this.#around(digits), ...this.#within(digits)].flatMap((claim) => claim.claimants))
  }

  #updateOwners(claim: Claim): void {
    const { digits, claimants } = claim
    if (digits === undefined || claimants.length === 0) this.#setOwners(claim, claimants)
    if (digits === undefined) return
    for (const inside of this.#within(digits)) {
      this.#setOwners(inside, [...new Set(this.#around(inside.digits!).flatMap((around) => around.claimants))])
    }
  }

  #setOwners(claim: Claim, owners: readonly string[]): void {
    const owner = owners.length === 1 ? owners[0] : undefined
    claim.owners = owners
    if (!this.#waits) claim.confirmed = owner
    else if (claim.confirmed !== owner) claim.confirmed = undefined
    const isUnconfirmed = owner !== undefined && claim.confirmed === undefined
    claim.ownership = isUnconfirmed ? UNCONFIRMED : owner === undefined ? CONTESTED : { kind: 'owned', owner }
    this.#changed(claim.range, owners, isUnconfirmed)
  }

  #longestAround(address: string): Claim | undefined {
    if (this.#ipv6.size === 0 || !address.includes(':')) return undefined
    return this.#around(ipv6Digits(address)).next().value
  }

  /** The ranges that contain the range with these digits, longest first. */
  *#around(digits: string): Generator<Claim, undefined> {
    for (let length = digits.length; length > 0; length--) {
      const claim = this.#counts[length] === 0 ? undefined : this.#ipv6.get(digits.slice(0, length))
      if (claim !== undefined) yield claim
    }
    return undefined
  }

  /** The ranges inside the range with these digits, including itself. */
  *#within(digits: string): Generator<Claim> {
    for (let at = this.#indexOf(digits); this.#order[at]?.startsWith(digits) === true; at++)
      yield this.#ipv6.get(this.#order[at]!)!
  }

  #add(range: string): Claim {
    const digits = range.includes(':') ? ipv6Digits(range) : undefined
    const confirmed = this.#longestAround(range)?.confirmed
    const claim: Claim = { range, digits, claimants: [], owners: [], confirmed, ownership: UNKNOWN }
    this.#claims.set(range, claim)
    if (digits !== undefined) {
      this.#ipv6.set(digits, claim)
      this.#order.splice(this.#indexOf(digits), 0, digits)
      this.#counts[digits.length]!++
    }
    return claim
  }

  #drop({ range, digits, confirmed }: Claim): void {
    this.#claims.delete(range)
    if (digits === undefined) return
    this.#ipv6.delete(digits)
    this.#order.splice(this.#indexOf(digits), 1)
    this.#counts[digits.length]!--
    const around = this.#longestAround(range)
    if (around === undefined || (confirmed !== undefined && around.confirmed === confirmed)) return
    // its owner gains what another one may have in the rules of before: again, if it was unconfirmed already
    const heirs = around.owners
    this.#setOwners(around, [])
    this.#setOwners(around, heirs)
  }

  /** The index in #order of the first digits that do not sort before these. */
  #indexOf(digits: string): number {
    let [low, high] = [0, this.#order.length]
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#order[middle]! < digits) low = middle + 1
      else high = middle
    }
    return low
  }
}
