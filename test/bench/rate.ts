/**
 * How many requests a second, beside Node's bare server?
 *
 * Two processes of the same program differ by up to a fifth for as long as they live, by how V8 happened to optimise them. So each
 * pair of rounds has processes of its own.
 */
import type { Part } from './bench.ts'
import { idOf, populate } from './population.ts'
import { residentMib, startBare, startImds } from './processes.ts'
import { median, type Table } from './report.ts'
import { disturbance, middle, ratio, takeTurns, type Round } from './rounds.ts'
import type { Connections } from './wrk.ts'

const INSTANCES = 500
const PATH = '/latest/meta-data/instance-id'
const MODES: readonly (readonly [Connections, string, number])[] = [['keep-alive', 'keep-alive', 0.95], ['reconnect', 'a connection per request', 0.9]]

/** GET of one leaf with 32 connections. */
export const rate: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'rate', INSTANCES)
  const all = MODES.map(() => ({ floor: [] as Round[], ours: [] as Round[], floorMib: [] as number[], oursMib: [] as number[] }))
  for (let pair = 0; pair < effort.rounds; pair++) {
    const bare = await startBare(built, idOf(0))
    const imds = await startImds(built, env, INSTANCES)
    try {
      for (const [i, [connections]] of MODES.entries()) {
        const [floor = [], ours = []] = await takeTurns([bare, imds], PATH, connections, { ...effort, rounds: 2 })
        all[i]!.floor.push(...floor)
        all[i]!.ours.push(...ours)
        all[i]!.floorMib.push(residentMib(bare.pid))
        all[i]!.oursMib.push(residentMib(imds.pid))
      }
    } finally {
      await Promise.all([bare.stop(), imds.stop()])
    }
  }
  return MODES.map(([, title, aim], i): Table => {
    const { floor, ours, floorMib, oursMib } = all[i]!
    const ratios = ours.map(({ requestsPerSecond }, n) => requestsPerSecond / floor[n]!.requestsPerSecond)
    return {
      title: `Rate, ${title}`,
      columns: ['', 'requests/s', 'p50 ms', 'p99 ms', 'CPU µs/request', 'resident MiB', 'connections/request', 'others'],
      rows: [
        ['bare node:http', ...figures(floor, median(floorMib))],
        ['imds', ...figures(ours, median(oursMib))],
        ['ratio', ratio(ours, floor, 'requestsPerSecond').toFixed(3), ratio(ours, floor, 'p50Ms').toFixed(2), ratio(ours, floor, 'p99Ms').toFixed(2),
          ratio(ours, floor, 'cpuMicrosPerRequest').toFixed(3), (median(oursMib) / median(floorMib)).toFixed(2), '', ''],
        ['aim', `>= ${String(aim)}`, '', '<= 1.5', '', '<= 1.35', '', ''],
      ],
      notes: [
        `GET ${PATH}, 32 connections of wrk on another core, ${String(INSTANCES)} instances in the view; medians of ${String(effort.rounds)} pairs of processes, each warmed up for ${String(effort.warmUpSeconds)} s and measured in two rounds of ${String(effort.seconds)} s. The rounds' ratios of the rates: ${ratios.map((each) => each.toFixed(2)).join(', ')}.`,
        'others: what other processes took of a core in the worst round; rounds above 5 % are taken again, up to three times.',
      ],
    }
  })
}

function figures(rounds: readonly Round[], resident: number): string[] {
  return [
    middle(rounds, 'requestsPerSecond').toFixed(0), middle(rounds, 'p50Ms').toFixed(2), middle(rounds, 'p99Ms').toFixed(2),
    middle(rounds, 'cpuMicrosPerRequest').toFixed(1), resident.toFixed(1), middle(rounds, 'connectionsPerRequest').toFixed(2), disturbance(rounds),
  ]
}
