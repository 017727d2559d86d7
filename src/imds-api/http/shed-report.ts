/** Counts the requests that are shed, and warns of them at most once a minute. */
import type { Log } from '../../runtime/log-codes.ts'
import type { ShedQueue } from '../model/refusal.ts'
import type { ApiServerSettings } from './server.ts'

/** `now`: milliseconds of a monotonic clock. */
export interface ShedReportParts {
  readonly count: (queue: ShedQueue) => void
  readonly now: () => number
  readonly log: Pick<Log, 'warn'>
}

/** The shortest time between two warnings, in ms. */
const QUIET_MS = 60_000

/** Builds what the servers call for each shed request. A warning has their number since the last warning. */
export function buildShedReport({ count, now, log }: ShedReportParts): ApiServerSettings['onShed'] {
  let [warnedAtMs, requests] = [-Infinity, 0]
  return (queue, owner) => {
    count(queue)
    requests++
    if (now() - warnedAtMs < QUIET_MS) return
    log.warn({ code: 'requests-shed', queue, owner, requests }, 'too many requests wait: the heaviest callers get 503')
    warnedAtMs = now()
    requests = 0
  }
}
