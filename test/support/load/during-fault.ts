/** Runs a test during a fault: what guests see (their requests), and what the operator sees (metrics and the log). */
import type { Test } from 'tap'
import { until } from '../programs/daemon.ts'
import type { FaultHost } from '../netns/fault-host.ts'
import { startLoad, type Figures, type RunningLoad } from './load.ts'

/** What the operator can observe. Each function waits for something and adds it to the report of the fault. */
export interface Operator {
  /** Waits until a metric has a value. */
  seesMetric(metric: string, value: number): Promise<void>
  /** Waits until a counter increases. */
  seesIncrease(metric: string): Promise<void>
  /** Waits for a log line that begins with this text, or has this code. */
  seesLogLine(message: string): Promise<void>
  /** Adds something that is seen outside the daemon to the report, without waiting. */
  notes(what: string): void
}

/** The metric of a condition. */
export const STORE_LOST = 'imds_condition{code="store-lost",severity="failure"}'

/** The least number of requests of each guest before the fault, and again after it. */
const MIN_REQUESTS = 50

/**
 * All guests send requests without a pause while `cause` causes and ends a fault, and until all changes have arrived.
 * At most `mostFailed` requests may fail, no guest may get the data of another instance, and no log line may be an
 * error.
 */
export async function underFault(
  t: Test,
  host: FaultHost,
  fault: string,
  cause: (operator: Operator) => Promise<void>,
  mostFailed = 0,
): Promise<void> {
  const seen: string[] = []
  const operator = await observe(host, seen)
  const loads = await Promise.all(host.guests.map(({ guest }) => startLoad(guest, { clients: 1, keepAlive: false })))
  const more = () => Promise.all(loads.map((load) => load.more(MIN_REQUESTS)))
  const problem = await more()
    .then(() => cause(operator))
    .then(() => host.arrived())
    .then(() => untilRecovered(host))
    .then(more)
    .then(
      () => undefined,
      (error: unknown) => error as Error,
    )
  const figures = await Promise.all(loads.map((load: RunningLoad) => load.stop()))
  if (problem !== undefined) throw problem

  const failed = figures.flatMap((of) => of.failed)
  if (mostFailed === 0) t.same(failed, [], 'no request failed')
  else t.ok(failed.length <= mostFailed, `at most ${mostFailed} requests failed: ${JSON.stringify(failed)}`)
  for (const [n, { id }] of host.guests.entries()) {
    const foreign = ['instance-id', 'hostname']
      .flatMap((name) => figures[n]!.answers[`/latest/meta-data/${name}`]!)
      .concat(figures[n]!.answers['/latest/user-data']!)
      .filter((body) => !body.includes(id))
    t.same(foreign, [], `${id} got only its own data`)
  }
  t.same(
    host.daemon().log.filter(({ level }) => level === 'error' || level === 'fatal'),
    [],
    'no error in the log',
  )
  report(t, fault, figures, failed.length, seen)
}

/** What the operator observes from now on is added to `seen`. */
async function observe(host: FaultHost, seen: string[]): Promise<Operator> {
  const former = host.daemon()
  const [before, linesBefore] = [await metricsOf(host), former.log.length]
  const isRestarted = () => host.daemon() !== former
  return {
    seesMetric: async (metric, value) => {
      await until(async () => (await metricsOf(host)).get(metric) === value, `${metric} ${value}`, 20_000)
      seen.push(`\`${metric} ${value}\``)
    },
    seesIncrease: async (metric) => {
      await until(
        async () => ((await metricsOf(host)).get(metric) ?? 0) > (isRestarted() ? 0 : (before.get(metric) ?? 0)),
        `${metric} to increase`,
        20_000,
      )
      seen.push(`\`${metric}\` grows`)
    },
    seesLogLine: async (message) => {
      const line = () =>
        host
          .daemon()
          .log.slice(isRestarted() ? 0 : linesBefore)
          .find(({ msg, code }) => msg.startsWith(message) || code === message)
      await until(() => line() !== undefined, `"${message}" in the log`, 20_000)
      const { level, msg, reason } = line()!
      seen.push(`${level} "${msg}"${typeof reason === 'string' ? ` (${reason})` : ''}`)
    },
    notes: (what) => seen.push(what),
  }
}

/** Waits until the metrics show that the daemon has recovered. */
async function untilRecovered(host: FaultHost): Promise<void> {
  const recovered = {
    [STORE_LOST]: 0,
    imds_view_instances: host.guests.length,
    imds_view_absent_instances: 0,
    imds_view_faulty_records: 0,
  }
  await until(
    async () => {
      const metrics = await metricsOf(host)
      return Object.entries(recovered).every(([metric, value]) => metrics.get(metric) === value)
    },
    `metrics like ${JSON.stringify(recovered)}`,
    20_000,
  )
}

async function metricsOf(host: FaultHost): Promise<Map<string, number>> {
  const lines = (await host.metrics()).split('\n').filter((line) => line.startsWith('imds_'))
  return new Map(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ') + 1))]),
  )
}

/** Reports a fault as a comment of tap. */
function report(t: Test, fault: string, figures: readonly Figures[], failed: number, seen: readonly string[]): void {
  const requests = figures.reduce((sum, of) => sum + of.requests, 0).toLocaleString('en-US')
  const slowestMs = Math.max(...figures.map((of) => of.slowestMs))
  t.comment(
    `${fault}: ${failed} of ${requests} requests failed, the slowest took ${slowestMs} ms; the operator sees ${seen.join('; ')}`,
  )
}
