/** Reads metrics of a program from Prometheus' text format, and the rates between two looks at them. */

/** Metrics by name, with their labels as Prometheus prints them. */
export type MetricValues = ReadonlyMap<string, number>

/** A look at the metrics. `atMs`: when, by a monotonic clock. */
export interface Sample {
  readonly metrics: MetricValues
  readonly atMs: number
}

/** The lines `NAME{LABELS} VALUE` of the format. */
export function parseMetrics(text: string): MetricValues {
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return new Map(
    lines.map((line) => {
      const end = line.lastIndexOf(' ')
      return [line.slice(0, end), Number(line.slice(end + 1))]
    }),
  )
}

/** The version of the program that has these metrics. */
export function runningVersion(metrics: MetricValues): string | undefined {
  const build = [...metrics.keys()].find((name) => name.startsWith('imds_build_info{')) ?? ''
  return /[{,]version="([^"]*)"/.exec(build)?.[1]
}

/** Returns the rate per second of the series that match. A program that was restarted between the samples has none. */
export function ratesBetween(before: Sample, after: Sample): (matches: (name: string) => boolean) => number {
  const started = ({ metrics }: Sample) => metrics.get('process_start_time_seconds')
  const seconds = started(before) === started(after) ? (after.atMs - before.atMs) / 1000 : Infinity
  return (matches) => {
    const sum = ({ metrics }: Sample) =>
      [...metrics].filter(([name]) => matches(name)).reduce((total, [, value]) => total + value, 0)
    return Math.max(0, (sum(after) - sum(before)) / seconds)
  }
}
