/**
 * The addresses from which clients and users have signed in, kept in the database. An attacker who exhausts the limit
 * of a subject cannot lock it out at these addresses, also after a restart and in other processes. FailureLimit has
 * them in memory. A row is written for a new address, and again on each day that it is used. Rows are read only for a
 * subject that is locked out.
 */
import { sql } from 'kysely'
import { LRUCache } from 'lru-cache'
import type { Log } from '../../runtime/log-codes.ts'
import type { Quota } from '../../limits/rate-limit-headers.ts'
import { MAX_KNOWN_ADDRESSES, failureKeys, type FailureLimit, type FailureSubject } from '../../limits/failure-limit.ts'
import { deleteInBatches } from '../database/purge.ts'
import type { Db } from '../database/transaction.ts'

/** How long an address stays known in the database after its last success, to a day. */
const RETENTION_MS = 90 * 86_400_000
/** How long the rows of a subject are cached. */
const REREAD_INTERVAL_MS = 60_000
const MAX_READS = 10_000

/** Dependencies. `now`: milliseconds since 1970. `steady`: milliseconds of a monotonic clock. */
export interface KnownAddressesParts {
  readonly db: Db
  readonly limit: FailureLimit
  readonly now: () => number
  readonly steady: () => number
  readonly log: Pick<Log, 'warn'>
}

/** A FailureLimit whose known addresses outlive the process. */
export class KnownAddresses {
  readonly #parts: KnownAddressesParts
  /**
   * By subject, the reads that run or were made in the last minute. Invented names too, so that response times do not
   * show which names exist.
   */
  readonly #reads: LRUCache<string, true, FailureSubject>

  constructor(parts: KnownAddressesParts) {
    this.#parts = parts
    this.#reads = new LRUCache({
      max: MAX_READS,
      ttl: REREAD_INTERVAL_MS,
      ttlResolution: 0,
      perf: { now: parts.steady },
      ignoreFetchAbort: true,
      fetchMethod: async (_key, _stale, { context }): Promise<true> => {
        await this.#read(context)
        return true
      },
    })
  }

  /** The quota of a subject that may not try now. Rejects if the database has to be read and does not answer. */
  async exceededQuota(subject: FailureSubject, address: string): Promise<Quota | undefined> {
    const { limit } = this.#parts
    if (limit.isLockedOut(subject, address))
      await this.#reads.fetch(`${subject.kind} ${failureKeys(subject, '').subject}`, { context: subject })
    const seconds = limit.waitSeconds(subject, address)
    return seconds === undefined ? undefined : limit.quotaOf(subject, address, seconds)
  }

  /** Counts a failure. Returns the rest of the quota. `isReal`: the client or user exists. */
  countFailure(subject: FailureSubject, address: string, isReal: boolean): Quota {
    const { limit } = this.#parts
    limit.countFailure(subject, address, isReal)
    return limit.quotaOf(subject, address, undefined)
  }

  /** Like FailureLimit.recordSuccess. Never rejects: an address that cannot be written is lost with the process. */
  async recordSuccess(subject: FailureSubject, address: string): Promise<void> {
    const { limit, log } = this.#parts
    if (!limit.recordSuccess(subject, address)) return
    await this.#write(subject, address).catch((error: unknown) => {
      log.warn(
        { code: 'sign-in-not-kept', reason: (error as Error).message },
        'the address of a sign-in was not written to the database: it is not known after a restart',
      )
    })
  }

  /** Deletes the addresses without a success for 90 days. */
  async purge(): Promise<void> {
    const { db, now } = this.#parts
    await deleteInBatches(db, 'known_addresses', sql`last_success < ${new Date(now() - RETENTION_MS)}`)
  }

  async #read(subject: FailureSubject): Promise<void> {
    const { db, limit } = this.#parts
    const rows = await db
      .selectFrom('known_addresses')
      .select('source')
      .where('kind', '=', subject.kind)
      .where('subject', '=', failureKeys(subject, '').subject)
      .orderBy('last_success', 'desc')
      .limit(MAX_KNOWN_ADDRESSES)
      .execute()
    limit.learn(subject, rows.map(({ source }) => source).toReversed())
  }

  /**
   * One statement that waits for no other: requests at the same time may exceed the number of rows until the next
   * write.
   */
  async #write({ kind, name }: FailureSubject, address: string): Promise<void> {
    const { db, now } = this.#parts
    const { subject, address: source } = failureKeys({ kind, name }, address)
    await sql`
      with forgotten as (
        delete from known_addresses where (kind, subject, source) in (
          select kind, subject, source from known_addresses where (kind, subject, source) in (
            select kind, subject, source from known_addresses
            where kind = ${kind} and subject = ${subject} and source <> ${source}
            order by last_success desc offset ${MAX_KNOWN_ADDRESSES - 1}
          ) for update skip locked
        )
      )
      insert into known_addresses (kind, subject, source, last_success)
      values (${kind}, ${subject}, ${source}, ${new Date(now())})
      on conflict (kind, subject, source) do update set last_success = excluded.last_success`.execute(db)
  }
}
