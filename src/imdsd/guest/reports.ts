/**
 * What guests report (contract H9). The last reports of a guest are kept as long as the view has its instance, within
 * the bounds of metadata/reports.ts and REPORTS_A_MINUTE. They are never served to a guest. The journal
 * has them too.
 */
import type { Content } from '../../metadata/content.ts'
import {
  addReport,
  MAX_REPORTS_BYTES,
  mergeReports,
  NO_REPORTS,
  parseReportName,
  PHONE_HOME,
  type Reports,
} from '../../metadata/reports.ts'
import type { Authorized } from './authorize.ts'
import { readBody } from './body.ts'
import { refused, type Exchange, type RequestResult, type ServedRequest, type Wait } from './exchange.ts'
import type { Guest } from './identify.ts'
import type { RefusalReason } from './refusals.ts'

export const REPORTS_A_MINUTE = 10
const MINUTE_MS = 60_000
/** The longest time that the body of a report may take. */
const BODY_TIMEOUT_MS = 5_000

const ACCEPTED: Content = { body: '', headers: ['Content-Type', 'text/plain', 'Content-Length', '0'] }

type Reporter = Pick<Guest, 'stay'> & { readonly instance: { readonly id: string } }

/** The response to a report if its body is accepted, or why the body is not even read. */
export function resolveReport(
  { guest, target: { route, path }, ttlSeconds }: Authorized,
  method: string | undefined,
): RequestResult {
  const name = parseReportName(path)
  if (name === undefined || guest.instance.options.reports !== 'enabled') return refused('not-found', route, ttlSeconds)
  if (name === PHONE_HOME) {
    // cloud-init's module cannot send a token: authorize.ts refuses it where one is required
    if (method !== 'POST') return refused('phone-home-method', route, ttlSeconds)
  } else if (method !== 'PUT') return refused('report-method', route, ttlSeconds)
  else if (ttlSeconds === undefined) return refused('token-required', route)
  return { kind: 'served', route, content: ACCEPTED, ttlSeconds }
}

/** Reads the body of a report that may be accepted, and keeps it. `served`: the response to an empty one. */
export function receiveReport(
  exchange: Pick<Exchange, 'body' | 'had'>,
  guest: Guest,
  path: string,
  served: ServedRequest,
  { reports }: { readonly reports: GuestReports },
): RequestResult | Wait {
  const { route, ttlSeconds } = served
  const { body } = exchange.had
  if (body === undefined) {
    if (!reports.countReport(guest)) return refused('too-many-reports', route, ttlSeconds)
    return {
      kind: 'wait',
      start: (done) =>
        readBody(exchange.body, MAX_REPORTS_BYTES, BODY_TIMEOUT_MS, (read) => {
          if (read.kind !== 'gone') done({ body: read })
        }),
    }
  }
  if (body.kind !== 'read')
    return refused(body.kind === 'too-large' ? 'report-too-large' : 'request-timeout', route, ttlSeconds)
  const refusal = reports.accept(guest, path, body.bytes)
  return refusal === undefined ? served : refused(refusal, route, ttlSeconds)
}

/** `sinceRevision`: this process received the reports with a higher revision. */
interface Kept {
  reports: Reports
  sinceRevision: number
  /** When the last requests were admitted, at most REPORTS_A_MINUTE. */
  readonly admittedMs: number[]
}

/** The reports of all guests of this hypervisor. `now`: monotonic, in ms; `wall`: the time of day, in ms. */
export class GuestReports {
  readonly #kept = new WeakMap<Guest['stay'], Kept>()
  readonly #now: () => number
  readonly #wall: () => number
  /** The instances that have reported before `onReport`. */
  readonly #early = new Set<string>()
  #changed: (id: string) => void = (id) => this.#early.add(id)

  constructor(now: () => number, wall: () => number) {
    this.#now = now
    this.#wall = wall
  }

  /** Sets the function that is called after each accepted report; at once for those that were accepted before. */
  onReport(changed: (id: string) => void): void {
    this.#changed = changed
    for (const id of this.#early) changed(id)
    this.#early.clear()
  }

  /** Counts a report against the rate limit of its guest, also if it is refused later. False: the limit is reached. */
  countReport({ stay }: Reporter): boolean {
    const { admittedMs } = this.#keptOf(stay)
    const now = this.#now()
    if (admittedMs.length >= REPORTS_A_MINUTE) {
      if (now - admittedMs[0]! < MINUTE_MS) return false
      admittedMs.shift()
    }
    admittedMs.push(now)
    return true
  }

  /** Keeps a report, or returns why it is refused. */
  accept(guest: Reporter, path: string, body: Uint8Array): RefusalReason | undefined {
    const name = parseReportName(path)
    if (name === undefined) return 'not-found'
    const kept = this.#keptOf(guest.stay)
    const reported = addReport(kept.reports, name, body, new Date(this.#wall()).toISOString())
    if (reported.kind !== 'reported') return reported.kind === 'malformed' ? 'bad-report' : 'report-too-large'
    kept.reports = reported.reports
    this.#changed(guest.instance.id)
    return undefined
  }

  /** The last reports of a guest; undefined: it has sent none. */
  of({ stay }: Pick<Guest, 'stay'>): Reports | undefined {
    const reports = this.#kept.get(stay)?.reports
    return reports === NO_REPORTS ? undefined : reports
  }

  /** Restores the reports of a guest from the journal. */
  restore({ stay }: Pick<Guest, 'stay'>, reports: Reports): void {
    this.#kept.set(stay, { reports, sinceRevision: reports.revision, admittedMs: [] })
  }

  /** Merges the reports of a guest in the store, and returns all. */
  merge({ stay }: Pick<Guest, 'stay'>, stored: Reports): Reports {
    const kept = this.#keptOf(stay)
    kept.reports = mergeReports(kept.reports, kept.sinceRevision, stored)
    return kept.reports
  }

  #keptOf(stay: Guest['stay']): Kept {
    let kept = this.#kept.get(stay)
    if (kept === undefined) this.#kept.set(stay, (kept = { reports: NO_REPORTS, sinceRevision: 0, admittedMs: [] }))
    return kept
  }
}
