/**
 * How do servers compare?
 *
 * Servers share one core and take turns, in rounds whose order turns around each time, so that what else happens on the machine
 * falls on all of them. A ratio is the median of the rounds' ratios: a drift between rounds does not move it.
 */
import { undisturbed } from './neighbours.ts'
import { acceptedConnections, cpuSeconds, type Server } from './processes.ts'
import { median } from './report.ts'
import { runWrk, type Connections, type WrkRun } from './wrk.ts'

/** How long to measure. */
export interface Effort { readonly warmUpSeconds: number, readonly rounds: number, readonly seconds: number }

/** What one server did in one round. */
export interface Round extends WrkRun { readonly cpuMicrosPerRequest: number, readonly connectionsPerRequest: number, readonly othersShare: number }

/** Loads every server in turn, with the same options of wrk's; gives the rounds of each, in the order of `servers`. */
export async function takeTurns(servers: readonly Server[], path: string, connections: Connections, { warmUpSeconds, rounds, seconds }: Effort, more: readonly string[] = []): Promise<readonly (readonly Round[])[]> {
  const results = servers.map((): Round[] => [])
  for (const { port } of servers) await runWrk(urlOf(port, path), connections, warmUpSeconds, more)
  for (let n = 0; n < rounds; n++) {
    const turns = [...servers.keys()]
    for (const i of n % 2 === 0 ? turns : turns.reverse()) results[i]!.push(await undisturbed(servers[i]!.pid, () => round(servers[i]!, path, connections, seconds, more)))
  }
  return results
}

async function round({ pid, port }: Server, path: string, connections: Connections, seconds: number, more: readonly string[]): Promise<Omit<Round, 'othersShare'>> {
  const [accepted, cpu] = [acceptedConnections(), cpuSeconds(pid)]
  const run = await runWrk(urlOf(port, path), connections, seconds, more)
  return {
    ...run,
    cpuMicrosPerRequest: (cpuSeconds(pid) - cpu) / run.requests * 1e6,
    connectionsPerRequest: (acceptedConnections() - accepted) / run.requests,
  }
}

/** The median of one figure. */
export function middle(rounds: readonly Round[], figure: keyof Round): number {
  return median(rounds.map((round) => round[figure]))
}

/** The median of the rounds' ratios of one figure. */
export function ratio(rounds: readonly Round[], floor: readonly Round[], figure: keyof Round): number {
  return median(rounds.map((round, i) => round[figure] / floor[i]![figure]))
}

/** The share of a core that other processes took, in the worst round: tells how quiet the machine was. */
export function disturbance(rounds: readonly Round[]): string {
  return `${(Math.max(...rounds.map(({ othersShare }) => othersShare)) * 100).toFixed(0)} %`
}

function urlOf(port: number, path: string): string {
  return `http://127.0.0.1:${String(port)}${path}`
}
