/** Shows the boot trace of an instance, and its guest's last requests, as documents with wall times. */
import type { Boot } from '../guest/boot-trace.ts'
import type { BootTraces } from '../guest/boot-traces.ts'
import { statusOf } from '../guest/refusals.ts'
import type { View } from '../view/view.ts'
import type { RecentRequest, Trace } from './documents.ts'

/** What a trace is read from. `now` is the clock of the view and of the traces, `wall` the time of day, both in ms. */
export interface TraceParts {
  readonly view: Pick<View, 'get'>
  readonly traces: Pick<BootTraces, 'of' | 'publishedMs'>
  readonly now: () => number
  readonly wall: () => number
}

/** The trace of an instance; undefined if this daemon does not serve it. */
export function traceOf(parts: TraceParts, id: string): Trace | undefined {
  const { view, traces, now } = parts
  const served = view.get(id)
  if (served === undefined) return undefined
  const timeOf = wallTime(parts)
  const publishedMs = traces.publishedMs(served)
  const trace = traces.of(served)
  return {
    id,
    revision: served.instance.revision,
    ...(publishedMs !== undefined && { publishedAt: timeOf(publishedMs) }),
    ...(trace !== undefined && { boot: documentOf(trace.boot(now()), timeOf) }),
    recent: recentRequests(parts, served),
  }
}

/** The last requests of a guest, the latest first. */
export function recentRequests(
  parts: Pick<TraceParts, 'traces' | 'now' | 'wall'>,
  served: Parameters<BootTraces['of']>[0],
): RecentRequest[] {
  const recent = parts.traces.of(served)?.recent() ?? []
  const timeOf = wallTime(parts)
  return recent.map(({ topic, outcome, atMs }) => ({
    at: timeOf(atMs),
    status: outcome === 'served' ? 200 : statusOf(outcome),
    reason: outcome,
    topic,
  }))
}

function documentOf(boot: Boot, timeOf: (ms: number) => string): NonNullable<Trace['boot']> {
  return {
    recognised: boot.isCrawl,
    firstRequestAt: timeOf(boot.firstMs),
    lastRequestAt: timeOf(boot.lastMs),
    ...(boot.isCrawl && boot.crawledMs !== undefined && { crawlEndedAt: timeOf(boot.crawledMs) }),
    requests: boot.requests,
    withToken: boot.withToken,
    userAgents: [...boot.agents],
    topics: boot.topics.map(({ firstMs, lastMs, ...rest }) => ({
      ...rest,
      firstAt: timeOf(firstMs),
      lastAt: timeOf(lastMs),
    })),
    refusals: boot.refusals.map(({ lastMs, ...rest }) => ({
      ...rest,
      status: statusOf(rest.reason),
      lastAt: timeOf(lastMs),
    })),
  }
}

/** Turns times of the monotonic clock into ISO 8601. */
function wallTime({ now, wall }: Pick<TraceParts, 'now' | 'wall'>): (ms: number) => string {
  const offsetMs = wall() - now()
  return (ms) => new Date(ms + offsetMs).toISOString()
}
