/**
 * What guests and the operator see during a fault: counted requests, metrics and the log.
 */
import { appendFileSync, writeFileSync } from 'node:fs'
import type { Test } from 'tap'
import { until } from '../programs/daemon.ts'
import type { FaultHost } from '../netns/fault-host.ts'
import { startLoad, type Figures, type RunningLoad } from './load.ts'

/** What the operator can observe. Each function waits until its condition holds, and adds it to the row of the fault. */
export interface Operator {
  /** A metric has a value. */
  sees(metric: string, value: number): Promise<void>
  /** A counter counts on. */
  counts(metric: string): Promise<void>
  /** A log line begins with this text. */
  reads(message: string): Promise<void>
  /** Any other condition, outside of the daemon. */
  notes(what: string): void
}

/** The least number of requests of each guest before the fault, and again after it. */
const AT_LEAST = 50

/**
 * All guests send requests without a pause while `happens` runs and until its changes have arrived. At most `mostFailed` requests may fail,
 * no guest gets data of another instance, and no log line is an error.
 */
export async function underFault(t: Test, host: FaultHost, fault: string, happens: (operator: Operator) => Promise<void>, mostFailed = 0): Promise<void> {
  const seen: string[] = []
  const operator = await operatorOf(host, seen)
  const loads = await Promise.all(host.guests.map(({ guest }) => startLoad(guest, { clients: 1, keepAlive: false })))
  const more = () => Promise.all(loads.map((load) => load.more(AT_LEAST)))
  const ended = await more().then(() => happens(operator)).then(() => host.arrived()).then(() => isInStep(host)).then(more)
    .then(() => undefined, (error: unknown) => error as Error)
  const figures = await Promise.all(loads.map((load: RunningLoad) => load.stop()))
  if (ended !== undefined) throw ended

  const failed = figures.flatMap((of) => of.failed)
  if (mostFailed === 0) t.same(failed, [], 'no request failed')
  else t.ok(failed.length <= mostFailed, `at most ${String(mostFailed)} requests failed: ${JSON.stringify(failed)}`)
  for (const [n, { id }] of host.guests.entries()) {
    const foreign = ['instance-id', 'hostname'].flatMap((name) => figures[n]!.answers[`/latest/meta-data/${name}`]!).concat(figures[n]!.answers['/latest/user-data']!)
      .filter((body) => !body.includes(id))
    t.same(foreign, [], `${id} was given its own only`)
  }
  t.same(host.daemon().log.filter(({ level }) => level === 'error' || level === 'fatal'), [], 'no error in the log')
  tell(t, fault, figures, failed.length, seen)
  writeRow(fault, mostFailed, seen)
}

async function operatorOf(host: FaultHost, seen: string[]): Promise<Operator> {
  const former = host.daemon()
  const [before, linesBefore] = [await metricsOf(host), former.log.length]
  const isNew = () => host.daemon() !== former
  return {
    sees: async (metric, value) => {
      await until(async () => (await metricsOf(host)).get(metric) === value, `${metric} ${String(value)}`, 20_000)
      seen.push(`\`${metric} ${String(value)}\``)
    },
    counts: async (metric) => {
      await until(async () => ((await metricsOf(host)).get(metric) ?? 0) > (isNew() ? 0 : before.get(metric) ?? 0), `${metric} to count`, 20_000)
      seen.push(`\`${metric}\` grows`)
    },
    reads: async (message) => {
      const line = () => host.daemon().log.slice(isNew() ? 0 : linesBefore).find(({ msg }) => msg.startsWith(message))
      await until(() => line() !== undefined, `"${message}" in the log`, 20_000)
      const { level, msg, reason } = line()!
      seen.push(`${level} "${msg}"${typeof reason === 'string' ? ` (${reason})` : ''}`)
    },
    notes: (what) => { seen.push(what) },
  }
}

/** The fault is over for the operator too: connected, and nothing left to worry about. */
async function isInStep(host: FaultHost): Promise<void> {
  const over = { imds_store_connected: 1, imds_ready: 1, imds_view_instances: host.guests.length, imds_view_unconfirmed_instances: 0, imds_view_faulty_records: 0 }
  await until(async () => {
    const metrics = await metricsOf(host)
    return Object.entries(over).every(([metric, value]) => metrics.get(metric) === value)
  }, `metrics like ${JSON.stringify(over)}`, 20_000)
}

async function metricsOf(host: FaultHost): Promise<Map<string, number>> {
  const lines = (await host.metrics()).split('\n').filter((line) => line.startsWith('imds_'))
  return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ') + 1))]))
}

function tell(t: Test, fault: string, figures: readonly Figures[], failed: number, seen: readonly string[]): void {
  const requests = figures.reduce((sum, of) => sum + of.requests, 0).toLocaleString('en-US')
  const slowestMs = Math.max(...figures.map((of) => of.slowestMs))
  t.comment(`${fault}: ${String(failed)} of ${requests} requests failed, the slowest took ${String(slowestMs)} ms; the operator sees ${seen.join('; ')}`)
}

/** Writes the row of a fault into the table of docs/operations.md. */
function writeRow(fault: string, mostFailed: number, seen: readonly string[]): void {
  const file = process.env['IMDS_FAULTS_MARKDOWN']
  if (file === undefined) return
  try {
    writeFileSync(file, '| fault | failed requests | the operator sees |\n|---|---|---|\n', { flag: 'wx' })
  } catch { /* another file of the suite wrote the head */ }
  appendFileSync(file, `| ${fault} | ${mostFailed === 0 ? 'none' : `at most ${String(mostFailed)}`} | ${seen.join('; ')} |\n`)
}
