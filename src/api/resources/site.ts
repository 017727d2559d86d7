/** Where this API is, with the domain that its region has in the database: applying a region file may change it. */
import type { Kysely } from 'kysely'
import type { Tables } from '../database/tables.ts'
import type { Site } from './nested.ts'

/** An older domain is read again. */
const DOMAIN_MAX_AGE_MS = 1_000

/** The site of a running API. `steady`: milliseconds of a clock that is never set. */
export class CurrentSite implements Site {
  readonly baseUrl: string
  readonly #tables: Kysely<Tables>
  readonly #steady: () => number
  #domain = ''
  #readAtMs = -Infinity

  constructor(baseUrl: string, tables: Kysely<Tables>, steady: () => number) {
    this.baseUrl = baseUrl
    this.#tables = tables
    this.#steady = steady
  }

  /** As the last `refresh` has read it. */
  get domain(): string {
    return this.#domain
  }

  /** Reads the domain, unless it was read less than a second ago: call it before each use of the site. Rejects when the database cannot be read. */
  async refresh(): Promise<void> {
    const startMs = this.#steady()
    if (startMs - this.#readAtMs < DOMAIN_MAX_AGE_MS) return
    const { domain } = await this.#tables.selectFrom('region').select('domain').executeTakeFirstOrThrow()
    if (startMs < this.#readAtMs) return // a later read has ended before
    this.#domain = domain
    this.#readAtMs = startMs
  }
}
