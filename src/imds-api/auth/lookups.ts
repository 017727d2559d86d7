/**
 * Queries of the database for callers who have not authenticated: checks of access tokens, and of clients.
 * Addresses take turns, so one that sends many delays only its own.
 */
import { FairQueue, type FairQueueLimits } from '../../limits/fair-queue.ts'
import { sourceOf } from '../../metadata/address.ts'
import { shed } from '../model/refusal.ts'

/** An address has at most as many waiting ones as connections. */
const LIMITS: FairQueueLimits = { atOnce: 2, maxWaiting: 1_024, timeoutMs: 10_000, all: { atOnce: 4 } }

export class Lookups {
  readonly #queue = new FairQueue(LIMITS)

  /** Runs a query at the turn of an address, which is canonical. Rejects with a refusal if too many wait. */
  async run<T>(address: string, query: () => Promise<T>): Promise<T> {
    const found = await this.#queue.run({ key: sourceOf(address) }, async () => ({ result: await query() }))
    if (found === undefined) throw shed('tokens', 'too many requests of your address wait: try again')
    return found.result
  }
}
