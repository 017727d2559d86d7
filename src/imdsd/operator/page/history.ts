/**
 * The requests of the last hour: what the meter had counted at intervals. A guest's request costs nothing for it, and it
 * takes at most MAX_SAMPLES samples of a few numbers.
 */
import { DURATION_BOUNDS, type RequestOutcome, type RequestMeter } from '../../guest/meter.ts'

export const INTERVAL_MS = 30_000
export const HISTORY_MS = 3_600_000
const MAX_SAMPLES = HISTORY_MS / INTERVAL_MS + 1

/** What was counted until a time. `buckets`: requests by their duration, not cumulative; the last one is above all bounds. */
interface Sample {
  readonly atMs: number
  readonly outcomes: ReadonlyMap<RequestOutcome, number>
  readonly buckets: readonly number[]
  readonly sumSeconds: number
}

/** The requests between two samples. Durations are undefined if there was none; `p99Ms` is the bound of a bucket. */
export interface Interval {
  readonly endMs: number
  readonly requestsPerSecond: number
  readonly refusalsPerSecond: number
  readonly meanMs: number | undefined
  readonly p99Ms: number | undefined
}

export interface History {
  /** Takes a sample. Call it every INTERVAL_MS. */
  sample(): void
  /** The intervals of the last hour, the oldest first. */
  intervals(): Interval[]
  /** The refusals by reason, the most frequent of the last hour first. */
  refusals(): { readonly reason: RequestOutcome; readonly lastHour: number; readonly sinceStart: number }[]
}

/** The history of one meter. `now`: milliseconds of a monotonic clock. */
export function buildHistory(meter: Pick<RequestMeter, 'counts' | 'durations'>, now: () => number): History {
  const read = (): Sample => {
    const outcomes = new Map<RequestOutcome, number>()
    for (const { reason, count } of meter.counts()) outcomes.set(reason, (outcomes.get(reason) ?? 0) + count)
    const routes = meter.durations()
    const cumulative = DURATION_BOUNDS.map((_bound, i) => sumOf(routes.map((route) => route.cumulative[i] ?? 0)))
    const counts = [...cumulative, sumOf(routes.map(({ count }) => count))]
    return {
      atMs: now(),
      outcomes,
      buckets: counts.map((count, i) => count - (counts[i - 1] ?? 0)),
      sumSeconds: sumOf(routes.map(({ sumSeconds }) => sumSeconds)),
    }
  }
  let samples: readonly Sample[] = [read()]
  return {
    sample: () => {
      samples = [...samples, read()].slice(-MAX_SAMPLES)
    },
    intervals: () => samples.slice(1).map((sample, i) => intervalOf(samples[i]!, sample)),
    refusals: () => {
      const before = samples[0]!.outcomes
      return [...read().outcomes]
        .filter(([reason]) => reason !== 'served')
        .map(([reason, sinceStart]) => ({ reason, lastHour: sinceStart - (before.get(reason) ?? 0), sinceStart }))
        .sort((a, b) => b.lastHour - a.lastHour || b.sinceStart - a.sinceStart)
    },
  }
}

function intervalOf(before: Sample, after: Sample): Interval {
  const seconds = Math.max((after.atMs - before.atMs) / 1000, 0.001)
  const requests = sumOf(after.outcomes.values()) - sumOf(before.outcomes.values())
  const served = (after.outcomes.get('served') ?? 0) - (before.outcomes.get('served') ?? 0)
  const buckets = after.buckets.map((count, i) => count - before.buckets[i]!)
  const timed = sumOf(buckets)
  return {
    endMs: after.atMs,
    requestsPerSecond: requests / seconds,
    refusalsPerSecond: (requests - served) / seconds,
    meanMs: timed > 0 ? ((after.sumSeconds - before.sumSeconds) / timed) * 1000 : undefined,
    p99Ms: timed > 0 ? boundOf(buckets, timed * 0.99) * 1000 : undefined,
  }
}

/** The bound of the bucket below which there are `count` durations; the highest bound if there is none. */
function boundOf(buckets: readonly number[], count: number): number {
  let below = 0
  const at = buckets.findIndex((more) => (below += more) >= count)
  return DURATION_BOUNDS[at] ?? DURATION_BOUNDS.at(-1)!
}

function sumOf(numbers: Iterable<number>): number {
  let sum = 0
  for (const number of numbers) sum += number
  return sum
}
