/**
 * The URL of this API and the domain of its region. The domain is read from the database at most once a second,
 * because applying a region file may change it.
 */
import type { Db } from '../../database/transaction.ts'

/** A domain that was read longer ago is read again. */
const DOMAIN_MAX_AGE_MS = 1_000

/** The site of a running API. `baseUrl`: without a final slash. `steady`: milliseconds of a monotonic clock. */
export class CurrentSite {
  readonly baseUrl: string
  readonly #db: Db
  readonly #steady: () => number
  #domain = ''
  #readAtMs = -Infinity
  #reading: Promise<void> | undefined

  constructor(baseUrl: string, db: Db, steady: () => number) {
    this.baseUrl = baseUrl
    this.#db = db
    this.#steady = steady
  }

  /** As the last `refresh` has read it. */
  get domain(): string {
    return this.#domain
  }

  /**
   * Reads the domain, unless it was read less than a second ago: call it before each use of the site. Rejects when the
   * database cannot be read.
   */
  async refresh(): Promise<void> {
    const startMs = this.#steady()
    if (startMs - this.#readAtMs < DOMAIN_MAX_AGE_MS) return
    await (this.#reading ??= this.#read(startMs).finally(() => {
      this.#reading = undefined
    }))
  }

  async #read(startMs: number): Promise<void> {
    const { domain } = await this.#db.selectFrom('region').select('domain').executeTakeFirstOrThrow()
    this.#domain = domain
    this.#readAtMs = startMs
  }
}

/** What representations need of it. */
export type Site = Pick<CurrentSite, 'baseUrl' | 'domain'>
