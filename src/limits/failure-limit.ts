/**
 * Limits failed token requests, and wrong passwords of operators. Successes are not limited.
 *
 * A failure is counted for its subject (a client or a user), for its address, and for the pair of both:
 *
 * - The limit of a pair is small. It stops guesses from one address, and does not affect others.
 * - The limit of an address is larger. It stops one address that tries many subjects.
 * - The limit of a subject is larger too. It stops guesses from many addresses. An attacker can use up this limit, but
 *   must not lock out the real subject. So an address from which the subject has succeeded since the start of this
 *   process has only the limit of its pair.
 *
 * A request beyond a limit is refused before its secret is checked, so a guess beyond it learns nothing. Invented names
 * have the same limits as real ones, so the limits do not show which are real. They are counted in tables of their own,
 * and so are clients and users, so invented names evict nobody.
 *
 * Memory is bounded: MAX_ENTRIES entries of each table, some 30 MB, and at most 5 KB for each client or user that has
 * succeeded. An address beyond its limit makes no entries. Each process counts for itself.
 */
import { LRUCache } from 'lru-cache'
import { hash } from 'node:crypto'
import { canonicalAddress, sourceOf } from '../metadata/address.ts'
import { TokenBucket } from './token-bucket.ts'
import type { Quota } from './rate-limit-headers.ts'

/**
 * Whom a request claims to come from: the id of a client or server, or the id of a user (of an unknown one, the name as it
 * was sent).
 */
export interface FailureSubject {
  readonly kind: 'client' | 'user' | 'server'
  readonly name: string
}

/** How many failures are allowed at once, and how many a second after that. */
interface Allowance {
  readonly burst: number
  readonly perSecond: number
}

/** Where failures are counted. A bucket that does not exist is full. */
interface Counter {
  readonly buckets: Buckets
  readonly key: string
  readonly allowance: Allowance
}
type Buckets = Pick<Map<string, TokenBucket>, 'get'> & { set(key: string, bucket: TokenBucket): unknown }
/** The tables of subjects of one kind, either real or made-up. */
interface Tables {
  readonly pairs: Buckets
  readonly subjects: Buckets
}

const PAIR: Allowance = { burst: 10, perSecond: 1 / 60 }
const ADDRESS: Allowance = { burst: 100, perSecond: 1 }
const SUBJECT: Allowance = { burst: 100, perSecond: 1 / 60 }
const MAX_ENTRIES = 10_000
/** From how many addresses a subject is known, at most. */
const MAX_KNOWN_ADDRESSES = 64

/** Counts failures. `now`: milliseconds of a monotonic clock. */
export class FailureLimit {
  readonly #now: () => number
  readonly #addresses = table<TokenBucket>()
  readonly #real = { client: tables(), user: tables(), server: tables() }
  readonly #unknown = { client: tables(), user: tables(), server: tables() }
  /**
   * The addresses from which a subject has succeeded, each with the bucket of the pair; the latest is the last. Only
   * real subjects have them.
   */
  readonly #known = {
    client: table<Map<string, TokenBucket>>(),
    user: table<Map<string, TokenBucket>>(),
    server: table<Map<string, TokenBucket>>(),
  }

  constructor(now: () => number) {
    this.#now = now
  }

  /** The quota of a subject that may not try now. */
  exceededQuota(subject: FailureSubject, address: string): Quota | undefined {
    const seconds = this.waitSeconds(subject, address)
    return seconds === undefined ? undefined : this.quotaOf(subject, address, seconds)
  }

  /** The seconds after which a request may be tried again; undefined: it may be tried now. */
  waitSeconds(subject: FailureSubject, address: string): number | undefined {
    const counters = this.#countersOf(subject, address, [this.#real[subject.kind], this.#unknown[subject.kind]])
    const empty = counters.find(({ buckets, key }) => buckets.get(key)?.hasToken(this.#now()) === false)
    return empty === undefined ? undefined : 1 / empty.allowance.perSecond
  }

  /**
   * What a pair has left. For a known address it is the same, and the other limits are not shown, so it tells neither
   * whether the subject exists nor who else has failed. `waitSeconds`: as `waitSeconds` has returned it.
   */
  quotaOf(subject: FailureSubject, address: string, waitSeconds: number | undefined): Quota {
    const keys = failureKeys(subject, address)
    const buckets = [
      this.#known[subject.kind].get(keys.subject)?.get(keys.address),
      this.#real[subject.kind].pairs.get(keys.pair),
      this.#unknown[subject.kind].pairs.get(keys.pair),
    ]
    const left = buckets.map((bucket) => bucket?.left(this.#now()) ?? PAIR.burst)
    return {
      name: 'failures',
      quota: PAIR.burst,
      windowSeconds: PAIR.burst / PAIR.perSecond,
      remaining: waitSeconds === undefined ? Math.min(...left) : 0,
      retrySeconds: waitSeconds ?? 1 / PAIR.perSecond,
    }
  }

  /** Returns what is left of the quota. `isReal`: the client or user exists. */
  countFailure(subject: FailureSubject, address: string, isReal: boolean): Quota {
    // false for requests in parallel that fail after the limit was reached
    const isWithin = this.waitSeconds(subject, address) === undefined
    const counted = isReal ? this.#real : this.#unknown
    for (const {
      buckets,
      key,
      allowance: { burst, perSecond },
    } of this.#countersOf(subject, address, [counted[subject.kind]])) {
      let bucket = buckets.get(key)
      if (bucket === undefined && !isWithin) continue
      if (bucket === undefined) buckets.set(key, (bucket = new TokenBucket(burst, perSecond)))
      bucket.take(this.#now(), 1)
    }
    return this.quotaOf(subject, address, undefined)
  }

  /** The address becomes known, with the failures that were counted for its pair. */
  recordSuccess(subject: FailureSubject, address: string): void {
    const { subject: name, address: source, pair } = failureKeys(subject, address)
    const known = this.#known[subject.kind].get(name) ?? new Map<string, TokenBucket>()
    const bucket =
      known.get(source) ?? this.#real[subject.kind].pairs.get(pair) ?? new TokenBucket(PAIR.burst, PAIR.perSecond)
    known.delete(source)
    known.set(source, bucket)
    // the address that is the longest without a success
    if (known.size > MAX_KNOWN_ADDRESSES) known.delete(known.keys().next().value!)
    this.#known[subject.kind].set(name, known)
  }

  #countersOf(subject: FailureSubject, address: string, counted: readonly Tables[]): readonly Counter[] {
    const keys = failureKeys(subject, address)
    const known = this.#known[subject.kind].get(keys.subject)?.get(keys.address)
    if (known !== undefined) return [{ buckets: new Map([[keys.address, known]]), key: keys.address, allowance: PAIR }]
    return [
      { buckets: this.#addresses, key: keys.address, allowance: ADDRESS },
      ...counted.flatMap(({ pairs, subjects }) => [
        { buckets: pairs, key: keys.pair, allowance: PAIR },
        { buckets: subjects, key: keys.subject, allowance: SUBJECT },
      ]),
    ]
  }
}

function table<T extends object>(): LRUCache<string, T> {
  return new LRUCache({ max: MAX_ENTRIES })
}

function tables(): Tables {
  return { pairs: table<TokenBucket>(), subjects: table<TokenBucket>() }
}

/**
 * The keys of the buckets. An IPv6 address counts as its /64, because one user often has a whole /64. A name may have
 * any length, so its hash is the key.
 */
function failureKeys(
  { name }: FailureSubject,
  address: string,
): { readonly subject: string; readonly address: string; readonly pair: string } {
  const [subject, source] = [hash('sha256', name, 'base64url'), sourceOf(canonicalAddress(address) ?? address)]
  return { subject, address: source, pair: `${source} ${subject}` }
}
