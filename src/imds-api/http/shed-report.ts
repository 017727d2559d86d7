/** Counts the requests that are shed, and warns of them at most once a minute. */
import { buildEachMinute } from '../../limits/each-minute.ts'
import type { Log } from '../../runtime/log-codes.ts'
import type { ShedQueue } from '../model/refusal.ts'
import type { ApiServerSettings } from './server.ts'

/** `now`: milliseconds of a monotonic clock. */
export interface ShedReportParts {
  readonly count: (queue: ShedQueue) => void
  readonly now: () => number
  readonly log: Pick<Log, 'warn'>
}

/** Builds what the servers call for each shed request. A warning has their number since the last warning. */
export function buildShedReport({ count, now, log }: ShedReportParts): ApiServerSettings['onShed'] {
  const isDue = buildEachMinute(now)
  let requests = 0
  return (queue, owner) => {
    count(queue)
    requests++
    if (!isDue('shed')) return
    log.warn({ code: 'requests-shed', queue, owner, requests }, 'too many requests wait: the heaviest callers get 503')
    requests = 0
  }
}
