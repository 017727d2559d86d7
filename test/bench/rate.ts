/**
 * How many requests a second, beside Node's bare server?
 */
import type { Part } from './bench.ts'
import { idOf, populate } from './population.ts'
import { residentMib, startBare, startImds } from './processes.ts'
import type { Table } from './report.ts'
import { disturbance, middle, ratio, takeTurns, type Round } from './rounds.ts'
import type { Connections } from './wrk.ts'

const INSTANCES = 500
const PATH = '/latest/meta-data/instance-id'
const MODES: readonly (readonly [Connections, string, number])[] = [['keep-alive', 'keep-alive', 0.95], ['reconnect', 'a connection per request', 0.9]]

/** GET of one leaf with 32 connections. */
export const rate: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'rate', INSTANCES)
  const bare = await startBare(built, idOf(0))
  const imds = await startImds(built, env, INSTANCES)
  try {
    const tables: Table[] = []
    for (const [connections, title, aim] of MODES) {
      const [floor = [], ours = []] = await takeTurns([bare, imds], PATH, connections, effort)
      const [floorMib, oursMib] = [residentMib(bare.pid), residentMib(imds.pid)]
      tables.push({
        title: `Rate, ${title}`,
        columns: ['', 'requests/s', 'p50 ms', 'p99 ms', 'CPU µs/request', 'resident MiB', 'connections/request', 'others'],
        rows: [
          ['bare node:http', ...figures(floor, floorMib)],
          ['imds', ...figures(ours, oursMib)],
          ['ratio', ratio(ours, floor, 'requestsPerSecond').toFixed(3), ratio(ours, floor, 'p50Ms').toFixed(2), ratio(ours, floor, 'p99Ms').toFixed(2),
            ratio(ours, floor, 'cpuMicrosPerRequest').toFixed(3), (oursMib / floorMib).toFixed(2), '', ''],
          ['aim', `>= ${String(aim)}`, '', '<= 1.5', '', '<= 1.35', '', ''],
        ],
        notes: [
          `GET ${PATH}, 32 connections of wrk on another core, ${String(INSTANCES)} instances in the view; ${String(effort.warmUpSeconds)} s to warm up, medians of ${String(effort.rounds)} rounds of ${String(effort.seconds)} s.`,
          'others: what other processes took of a core in the worst round; rounds above 5 % are taken again, up to three times.',
        ],
      })
    }
    return tables
  } finally {
    await Promise.all([bare.stop(), imds.stop()])
  }
}

function figures(rounds: readonly Round[], resident: number): string[] {
  return [
    middle(rounds, 'requestsPerSecond').toFixed(0), middle(rounds, 'p50Ms').toFixed(2), middle(rounds, 'p99Ms').toFixed(2),
    middle(rounds, 'cpuMicrosPerRequest').toFixed(1), resident.toFixed(1), middle(rounds, 'connectionsPerRequest').toFixed(2), disturbance(rounds),
  ]
}
