/**
 * The query of a request: a subtree (`recursive`, contract H2) costs the guest's share by its size, and a request that
 * waits for a change (`wait_for_change`, H1) is held until its value changes.
 */
import { performance } from 'node:perf_hooks'
import type { Query } from '../../metadata/target.ts'
import type { AwaitedChange, Exchange, RequestResult, ServedRequest, Wait } from './exchange.ts'
import { refused } from './exchange.ts'
import type { HeldRequests } from './held-requests.ts'
import type { Guest } from './identify.ts'

/** How many paths of a subtree cost as much as a request. */
const PATHS_PER_REQUEST = 16

/** How many requests of its share a query costs its guest. */
export function priceOfQuery({ recursive }: Query, { paths }: Pick<Guest, 'paths'>): number {
  return recursive ? paths / PATHS_PER_REQUEST : 0
}

/**
 * The result for a value that may have to change first. `isInTree`: the value is not only in its grace period, in which a
 * request that waits is told that it is gone.
 */
export function awaitChange(
  exchange: Exchange,
  id: string,
  { wait }: Query,
  served: ServedRequest,
  isInTree: () => boolean,
  held: HeldRequests,
): RequestResult | Wait {
  const { content, route, ttlSeconds } = served
  const { etag } = content
  const change = exchange.had.change ?? begin(exchange, wait, served)
  if (change === undefined || change.hasEnded || held.isStopping) return served
  if (exchange.had.change !== undefined && !isInTree()) return refused('not-found', route, ttlSeconds)
  if (etag !== change.etag) return served
  if (!held.mayHold(id)) return refused('too-many-waiting', route, ttlSeconds)
  return {
    kind: 'wait',
    start: (done) =>
      held.hold(id, exchange, change.untilMs - performance.now(), (why) => {
        if (why === 'stop') exchange.response.shouldKeepAlive = false
        done({ change: { ...change, hasEnded: why !== 'changed' } })
      }),
  }
}

/** The change that a request begins to wait for; undefined if it waits for none. */
function begin(
  { had }: Exchange,
  wait: Query['wait'],
  { content: { etag }, ttlSeconds }: ServedRequest,
): AwaitedChange | undefined {
  if (wait === undefined || etag === undefined) return undefined
  const { lastEtag, timeoutMs } = wait
  // without last_etag it waits for a change since it came: its record may have changed while a signature was made
  if (lastEtag === undefined && had.steps === 'other-record') return undefined
  // one second more than is left of the token, so that it has expired at the end
  const leftMs = ttlSeconds === undefined ? Infinity : (ttlSeconds + 1) * 1000
  return {
    etag: lastEtag === undefined ? etag : `"${lastEtag}"`,
    untilMs: performance.now() + Math.min(timeoutMs, leftMs),
    hasEnded: false,
  }
}
