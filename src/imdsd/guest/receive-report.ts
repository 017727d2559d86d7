/** Receives a report of a guest (contract H9): reads its body, and keeps it if the guest may still report then. */
import { MAX_REPORTS_BYTES } from '../../metadata/reports.ts'
import type { Target } from '../../metadata/target.ts'
import { readBody, type Body } from './body.ts'
import { ADDRESS_LOST, refused, type Exchange, type RequestResult, type ServedRequest, type Steps } from './exchange.ts'
import { guestOf, idOf } from './identify.ts'
import type { RefusalLog } from './refusal-log.ts'
import type { GuestReports } from './reports.ts'

/** The longest time that the body of a report may take. */
const BODY_TIMEOUT_MS = 5_000

interface ReportParts {
  readonly steps: Steps
  readonly reports: GuestReports
  readonly refusalLog: RefusalLog
}

/** `served`: the response to a report that is accepted. */
export function receiveReport(
  exchange: Exchange,
  target: Target | undefined,
  served: ServedRequest,
  parts: ReportParts,
): void {
  const { steps, reports } = parts
  if (!reports.countReport(guestOf(exchange.found)!)) {
    steps.send(exchange, target, refused('too-many-reports', served.route, served.ttlSeconds))
    return
  }
  readBody(exchange.body, MAX_REPORTS_BYTES, BODY_TIMEOUT_MS, (body) => {
    if (body.kind !== 'gone') steps.send(exchange, target, keep(exchange, served, body, parts))
  })
}

function keep(
  exchange: Exchange,
  served: ServedRequest,
  body: Exclude<Body, { kind: 'gone' }>,
  { steps, reports, refusalLog }: ReportParts,
): RequestResult {
  const { route, ttlSeconds } = served
  if (body.kind !== 'read')
    return refused(body.kind === 'too-large' ? 'report-too-large' : 'request-timeout', route, ttlSeconds)
  const found = steps.findAgain(exchange)
  if (found.kind !== 'owned' || idOf(found) !== idOf(exchange.found)) return ADDRESS_LOST
  const { target, result } = steps.resolveAgain({ ...exchange, found })
  if (result.kind === 'refused') return result
  const outcome = reports.accept(found.owner, target?.path ?? '', body.bytes)
  if (outcome.kind === 'refused') return refused(outcome.refusal, route, ttlSeconds)
  if (outcome.ignored.length > 0) refusalLog.logIgnoredKeys(exchange.network, found.owner.instance.id, outcome.ignored)
  return { ...served, content: outcome.content }
}
