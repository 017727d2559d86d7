/**
 * Counts requests by route, method and outcome, and their durations.
 *
 * Every request is counted, so the counts are plain numbers in flat arrays and counting allocates nothing. metrics.ts
 * reads them when Prometheus scrapes. Every label has a closed set of values.
 */
import { ROUTES, type Route } from '../../metadata/target.ts'
import { REFUSALS, statusOf, type RefusalReason } from './refusals.ts'

/** Why a connection was closed without a response. */
const DROPS = ['descriptors', 'over-share', 'owner-changed', 'stalled'] as const
/**
 * The session of a request for metadata: a valid token, none, or refused because a token was required or the token was
 * invalid.
 */
const SESSIONS = ['token', 'none', 'refused'] as const

const METHODS = ['GET', 'HEAD', 'PUT', 'POST', 'DELETE', 'OPTIONS', 'other'] as const
/** How a request ended: served, or the reason of its refusal. */
export type RequestOutcome = 'served' | RefusalReason
/** The outcome of a request as it is counted: `not-modified` is served with 304 (contract H1). */
export type CountedOutcome = RequestOutcome | 'not-modified'
const OUTCOMES: readonly CountedOutcome[] = ['served', 'not-modified', ...REFUSALS]

/** Upper bounds of the duration buckets, in seconds. */
export const DURATION_BOUNDS: readonly number[] = [
  0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
]

/** The position of each name. */
const positions = <T extends string>(names: readonly T[]): Record<T, number> =>
  Object.fromEntries(names.map((name, i) => [name, i])) as Record<T, number>
const zeros = <T extends string>(names: readonly T[]): Record<T, number> =>
  Object.fromEntries(names.map((name) => [name, 0])) as Record<T, number>
const ROUTE_AT = positions(ROUTES)
const METHOD_AT: Record<string, number | undefined> = positions(METHODS)
const OUTCOME_AT = positions(OUTCOMES)
const OTHER = METHODS.length - 1

/** Whether a method has its own count; all others count as `other`. */
export function isCounted(method: string): boolean {
  return METHOD_AT[method] !== undefined
}

function labelsOf(outcome: CountedOutcome): Pick<RequestCount, 'status' | 'reason'> {
  if (outcome === 'served') return { status: 200, reason: 'served' }
  if (outcome === 'not-modified') return { status: 304, reason: 'served' }
  return { status: statusOf(outcome), reason: outcome }
}

/** A counted combination. */
export interface RequestCount {
  readonly route: Route
  readonly method: string
  readonly status: number
  readonly reason: RequestOutcome
  readonly count: number
}
/** The durations of one route: cumulative counts per bound, the count of all, and their sum in seconds. */
export interface RouteDurations {
  readonly route: Route
  readonly cumulative: readonly number[]
  readonly count: number
  readonly sumSeconds: number
}

/** The counts of all listeners. */
export class RequestMeter {
  readonly #counts = new Float64Array(ROUTES.length * METHODS.length * OUTCOMES.length)
  readonly #buckets = new Float64Array(ROUTES.length * (DURATION_BOUNDS.length + 1))
  readonly #sums = new Float64Array(ROUTES.length)
  readonly #drops = zeros(DROPS)
  readonly #sessions = zeros(SESSIONS)
  #forwards = 0

  /**
   * Counts a request. `seconds`: the time from reading its headers to passing its response to the socket; undefined if
   * no request could be read.
   */
  countResponse(route: Route, method: string, outcome: CountedOutcome, seconds: number | undefined): void {
    const at = ROUTE_AT[route]
    const cell = (at * METHODS.length + (METHOD_AT[method] ?? OTHER)) * OUTCOMES.length + OUTCOME_AT[outcome]
    this.#counts[cell] = this.#counts[cell]! + 1
    if (seconds === undefined) return
    let bucket = 0
    while (bucket < DURATION_BOUNDS.length && seconds > DURATION_BOUNDS[bucket]!) bucket++
    const bucketCell = at * (DURATION_BOUNDS.length + 1) + bucket
    this.#buckets[bucketCell] = this.#buckets[bucketCell]! + 1
    this.#sums[at] = this.#sums[at]! + seconds
  }

  /** Counts connections that were closed without a response. */
  countDrops(reason: (typeof DROPS)[number], connections: number): void {
    this.#drops[reason] += connections
  }

  get drops(): Readonly<Record<(typeof DROPS)[number], number>> {
    return this.#drops
  }

  countSession(session: (typeof SESSIONS)[number]): void {
    this.#sessions[session] += 1
  }

  get sessions(): Readonly<Record<(typeof SESSIONS)[number], number>> {
    return this.#sessions
  }

  /** Counts a forwarded request, refused or not. */
  countForwarded(): void {
    this.#forwards += 1
  }

  get forwards(): number {
    return this.#forwards
  }

  /** Every combination that has occurred. */
  counts(): RequestCount[] {
    return ROUTES.flatMap((route, r) =>
      METHODS.flatMap((method, m) =>
        OUTCOMES.flatMap((outcome, o) => {
          const count = this.#counts[(r * METHODS.length + m) * OUTCOMES.length + o]!
          return count === 0 ? [] : [{ route, method, ...labelsOf(outcome), count }]
        }),
      ),
    )
  }

  durations(): RouteDurations[] {
    return ROUTES.map((route, r) => {
      let count = 0
      const cumulative = [
        ...this.#buckets.subarray(r * (DURATION_BOUNDS.length + 1), (r + 1) * (DURATION_BOUNDS.length + 1)),
      ].map((n) => (count += n))
      return { route, cumulative: cumulative.slice(0, -1), count, sumSeconds: this.#sums[r]! }
    })
  }
}
