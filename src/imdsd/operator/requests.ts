/** What the guest of an instance has asked for, as a document with wall times. */
import type { LastRequests } from '../guest/last-requests.ts'
import { statusOf } from '../guest/refusals.ts'
import type { AskedFor } from './documents.ts'

/** What it is read from. `now` is the clock of the requests, `wall` the time of day, both in ms. */
export interface RequestsParts {
  readonly requests: Pick<LastRequests, 'of'>
  readonly now: () => number
  readonly wall: () => number
}

/** The last request of a guest for each kind of path, the latest first. */
export function requestsOf(
  { requests, now, wall }: RequestsParts,
  guest: Parameters<LastRequests['of']>[0],
): AskedFor[] {
  const offsetMs = wall() - now()
  return requests.of(guest).map(({ topic, outcome, agent, atMs, count }) => ({
    topic,
    at: new Date(atMs + offsetMs).toISOString(),
    status: outcome === 'served' ? 200 : statusOf(outcome),
    reason: outcome,
    ...(agent !== undefined && { userAgent: agent }),
    count,
  }))
}
