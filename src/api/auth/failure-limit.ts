/**
 * Limits failed token requests. Successes are not limited.
 *
 * A failure is counted for its subject (a client or a user), for its address, and for the pair of both:
 *
 * - The limit of a pair is small. It stops guesses from one address, and does not affect others.
 * - The limit of an address is larger. It stops one address that tries many subjects.
 * - The limit of a subject is larger too. It stops guesses from many addresses. An attacker can use up this limit, but must not
 *   lock out the real subject. So an address from which the subject has succeeded before has only the limit of its pair.
 *
 * A request beyond a limit is refused before its secret is checked, so a guess beyond it learns nothing. Made-up names have the same limits as real ones, so
 * the limits do not show which are real. But they are counted in tables of their own, and so are clients and users: an attacker who has many addresses can
 * make up names without end, and must not push out what is counted for a real subject.
 *
 * Memory is bounded: MOST entries of each table, some 30 MB, and at most 5 KB for each client or user that has succeeded. An address beyond its limit makes no
 * entries. Each process counts for itself.
 */
import { LRUCache } from 'lru-cache'
import { hash } from 'node:crypto'
import { canonicalAddress, sourceOf } from '../../metadata/address.ts'
import { TokenBucket } from '../../runtime/token-bucket.ts'

/** Whom a request claims to come from: the id of a client, or the id of a user (of an unknown one, the name as it was sent). */
export interface Subject { readonly kind: 'client' | 'user', readonly name: string }

/** How many failures are allowed at once, and how many a second after that. */
interface Allowance { readonly burst: number, readonly perSecond: number }

/** Where failures are counted. A bucket that does not exist is full. */
interface Counter { readonly buckets: Buckets, readonly key: string, readonly allowance: Allowance }
type Buckets = Pick<Map<string, TokenBucket>, 'get'> & { set(key: string, bucket: TokenBucket): unknown }
/** The tables of subjects of one kind, either real or made-up. */
interface Tables { readonly pairs: Buckets, readonly subjects: Buckets }

const PAIR: Allowance = { burst: 10, perSecond: 1 / 60 }
const ADDRESS: Allowance = { burst: 100, perSecond: 1 }
const SUBJECT: Allowance = { burst: 100, perSecond: 1 / 60 }
const MOST = 10_000
/** From how many addresses a subject is known, at most. */
const KNOWN_ADDRESSES = 64

/** Counts failures. `now`: milliseconds of a monotonic clock. */
export class FailureLimit {
  readonly #now: () => number
  readonly #addresses = table<TokenBucket>()
  readonly #real = { client: tables(), user: tables() }
  readonly #unknown = { client: tables(), user: tables() }
  /** The addresses from which a subject has succeeded, each with the bucket of the pair. Only real subjects have them. */
  readonly #known = { client: table<Map<string, TokenBucket>>(), user: table<Map<string, TokenBucket>>() }

  constructor(now: () => number) {
    this.#now = now
  }

  /** The seconds after which a request may be tried again; undefined: it may be tried now. */
  waitSeconds(subject: Subject, address: string): number | undefined {
    const counters = this.#countersOf(subject, address, [this.#real[subject.kind], this.#unknown[subject.kind]])
    const empty = counters.find(({ buckets, key }) => buckets.get(key)?.hasToken(this.#now()) === false)
    return empty === undefined ? undefined : 1 / empty.allowance.perSecond
  }

  /** `isReal`: the client or user exists. */
  failed(subject: Subject, address: string, isReal: boolean): void {
    const isWithin = this.waitSeconds(subject, address) === undefined // false for requests in parallel that fail after the limit was reached
    const counted = isReal ? this.#real : this.#unknown
    for (const { buckets, key, allowance: { burst, perSecond } } of this.#countersOf(subject, address, [counted[subject.kind]])) {
      let bucket = buckets.get(key)
      if (bucket === undefined && !isWithin) continue
      if (bucket === undefined) buckets.set(key, bucket = new TokenBucket(burst, perSecond))
      bucket.hasToken(this.#now()) // adds what was earned until now
      bucket.take(1)
    }
  }

  succeeded(subject: Subject, address: string): void {
    const { subject: name, address: source, pair } = keysOf(subject, address)
    const known = this.#known[subject.kind].get(name) ?? new Map<string, TokenBucket>()
    const bucket = known.get(source) ?? this.#real[subject.kind].pairs.get(pair) ?? new TokenBucket(PAIR.burst, PAIR.perSecond)
    known.delete(source)
    known.set(source, bucket)
    if (known.size > KNOWN_ADDRESSES) known.delete(known.keys().next().value!) // the one that is the longest without a success
    this.#known[subject.kind].set(name, known)
  }

  #countersOf(subject: Subject, address: string, counted: readonly Tables[]): readonly Counter[] {
    const keys = keysOf(subject, address)
    const known = this.#known[subject.kind].get(keys.subject)
    if (known?.has(keys.address) === true) return [{ buckets: known, key: keys.address, allowance: PAIR }]
    return [
      { buckets: this.#addresses, key: keys.address, allowance: ADDRESS },
      ...counted.flatMap(({ pairs, subjects }) => [
        { buckets: pairs, key: keys.pair, allowance: PAIR }, { buckets: subjects, key: keys.subject, allowance: SUBJECT },
      ]),
    ]
  }
}

function table<T extends object>(): LRUCache<string, T> {
  return new LRUCache({ max: MOST })
}

function tables(): Tables {
  return { pairs: table<TokenBucket>(), subjects: table<TokenBucket>() }
}

/**
 * The keys of the buckets. An IPv6 address counts as its /64, because one user often has a whole /64. A name may have any length, so its hash is the key.
 */
function keysOf({ name }: Subject, address: string): { readonly subject: string, readonly address: string, readonly pair: string } {
  const [subject, source] = [hash('sha256', name, 'base64url'), sourceOf(canonicalAddress(address) ?? address)]
  return { subject, address: source, pair: `${source} ${subject}` }
}
