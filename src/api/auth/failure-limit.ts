/**
 * Limits failed token requests. Successes are not limited.
 *
 * A failure is counted for its subject (the id of a client, or the name of a user), for its address, and for the pair of both:
 *
 * - The limit of a pair is small. It stops guesses from one address, and does not affect others.
 * - The limit of an address is larger. It stops one address that tries many subjects.
 * - The limit of a subject is larger too. It stops guesses from many addresses. An attacker can use up this limit, but must not
 *   lock out the real subject. So an address from which the subject has succeeded before has only the limit of its pair.
 *
 * A request beyond a limit is refused before its secret is checked, so a guess beyond it learns nothing. Memory is bounded: MOST entries of each kind, some
 * 15 MB if names are long. Only a failure makes entries, and an address beyond its limit makes none, so it cannot push out the entries of others with made-up
 * names. Each process counts for itself.
 */
import { LRUCache } from 'lru-cache'
import { canonicalAddress, sourceOf } from '../../metadata/address.ts'
import { TokenBucket } from '../../runtime/token-bucket.ts'

/** How many failures are allowed at once, and how many a second after that. */
interface Allowance { readonly burst: number, readonly perSecond: number }

/** Where failures are counted. A bucket that does not exist is full. */
interface Counter { readonly buckets: LRUCache<string, TokenBucket>, readonly key: string, readonly allowance: Allowance }

const PAIR: Allowance = { burst: 10, perSecond: 1 / 60 }
const ADDRESS: Allowance = { burst: 100, perSecond: 1 }
const SUBJECT: Allowance = { burst: 100, perSecond: 1 / 60 }
const MOST = 10_000
/** No id and no e-mail address is longer. */
const LONGEST_SUBJECT = 254

/** Counts failures. `now`: milliseconds of a monotonic clock. */
export class FailureLimit {
  readonly #now: () => number
  readonly #pairs = new LRUCache<string, TokenBucket>({ max: MOST })
  readonly #addresses = new LRUCache<string, TokenBucket>({ max: MOST })
  readonly #subjects = new LRUCache<string, TokenBucket>({ max: MOST })
  /** Pairs that have succeeded. */
  readonly #known = new LRUCache<string, true>({ max: MOST })

  constructor(now: () => number) {
    this.#now = now
  }

  /** The seconds after which a request may be tried again; undefined: it may be tried now. */
  waitSeconds(subject: string, address: string): number | undefined {
    const empty = this.#countersOf(subject, address).find(({ buckets, key }) => buckets.get(key)?.hasToken(this.#now()) === false)
    return empty === undefined ? undefined : 1 / empty.allowance.perSecond
  }

  failed(subject: string, address: string): void {
    const isWithin = this.waitSeconds(subject, address) === undefined // false for requests in parallel that fail after the limit was reached
    for (const { buckets, key, allowance: { burst, perSecond } } of this.#countersOf(subject, address)) {
      let bucket = buckets.get(key)
      if (bucket === undefined && !isWithin) continue
      if (bucket === undefined) buckets.set(key, bucket = new TokenBucket(burst, perSecond))
      bucket.hasToken(this.#now()) // adds what was earned until now
      bucket.take(1)
    }
  }

  succeeded(subject: string, address: string): void {
    this.#known.set(keysOf(subject, address).pair, true)
  }

  #countersOf(subject: string, address: string): readonly Counter[] {
    const keys = keysOf(subject, address)
    const pair: Counter = { buckets: this.#pairs, key: keys.pair, allowance: PAIR }
    if (this.#known.get(keys.pair) === true) return [pair]
    return [{ buckets: this.#addresses, key: keys.address, allowance: ADDRESS }, pair, { buckets: this.#subjects, key: keys.subject, allowance: SUBJECT }]
  }
}

/** The keys of the buckets. An IPv6 address counts as its /64, because one user often has a whole /64. */
function keysOf(subject: string, address: string): { readonly subject: string, readonly address: string, readonly pair: string } {
  const [name, source] = [subject.slice(0, LONGEST_SUBJECT), sourceOf(canonicalAddress(address) ?? address)]
  return { subject: name, address: source, pair: `${source} ${name}` }
}
