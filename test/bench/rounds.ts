/**
 * Compares servers: they take turns on one core, in rounds of alternating order, so that other load affects all of
 * them.
 *
 * A ratio is the median of the rounds' ratios, so a drift from round to round does not change it.
 */
import { cpuSeconds, type Server } from './processes.ts'
import { median } from './report.ts'
import { runWrk, type Connections, type WrkRun } from './wrk.ts'

/** The length of a measurement. */
export interface Effort {
  readonly warmUpSeconds: number
  readonly rounds: number
  readonly seconds: number
  /** The number of processes of each program, where their differences matter. */
  readonly processes: number
}

/** The figures of one server in one round. */
export interface Round extends WrkRun {
  readonly cpuMicrosPerRequest: number
}

/**
 * Loads every server in turn by wrk with the same options. Returns the rounds of each server, in the order of
 * `servers`.
 */
export async function takeTurns(
  servers: readonly Server[],
  path: string,
  connections: Connections,
  { warmUpSeconds, rounds, seconds }: Omit<Effort, 'processes'>,
): Promise<readonly (readonly Round[])[]> {
  const results = servers.map((): Round[] => [])
  for (const { port } of servers) await runWrk(urlOf(port, path), connections, warmUpSeconds)
  for (let n = 0; n < rounds; n++) {
    const turns = [...servers.keys()]
    for (const i of n % 2 === 0 ? turns : turns.reverse())
      results[i]!.push(await round(servers[i]!, path, connections, seconds))
  }
  return results
}

/** The rounds of one process as one: medians, and the CPU time of all requests. */
export function inOne(rounds: readonly Round[]): Round {
  const requests = rounds.reduce((sum, round) => sum + round.requests, 0)
  const cpuMicros = rounds.reduce((sum, round) => sum + round.cpuMicrosPerRequest * round.requests, 0)
  return {
    requests,
    cpuMicrosPerRequest: cpuMicros / requests,
    requestsPerSecond: medianOf(rounds, 'requestsPerSecond'),
    p50Ms: medianOf(rounds, 'p50Ms'),
    p99Ms: medianOf(rounds, 'p99Ms'),
  }
}

async function round({ pid, port }: Server, path: string, connections: Connections, seconds: number): Promise<Round> {
  const cpu = cpuSeconds(pid)
  const run = await runWrk(urlOf(port, path), connections, seconds)
  return {
    ...run,
    cpuMicrosPerRequest: ((cpuSeconds(pid) - cpu) / run.requests) * 1e6,
  }
}

/** The median of one figure. */
export function medianOf(rounds: readonly Round[], figure: keyof Round): number {
  return median(rounds.map((round) => round[figure]))
}

/** The median of the rounds' ratios of one figure. */
export function ratio(rounds: readonly Round[], baseline: readonly Round[], figure: keyof Round): number {
  return median(rounds.map((round, i) => round[figure] / baseline[i]![figure]))
}

function urlOf(port: number, path: string): string {
  return `http://127.0.0.1:${port}${path}`
}
