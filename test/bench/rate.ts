/**
 * The rate of requests, compared with a bare `node:http` server.
 *
 * Two processes of the same program can differ by a fifth for their whole life, because V8 optimised them differently.
 * So each pair of rounds has new processes.
 */
import type { Part } from './bench.ts'
import { idOf, populate } from './population.ts'
import { residentMib, startBare, startImds } from './processes.ts'
import { median, type Table } from './report.ts'
import { medianOf, ratio, takeTurns, type Round } from './rounds.ts'
import type { Connections } from './wrk.ts'

const INSTANCES = 500
const PATH = '/latest/meta-data/instance-id'
const MODES: readonly (readonly [Connections, string, number])[] = [
  ['keep-alive', 'keep-alive', 0.95],
  ['reconnect', 'a connection per request', 0.9],
]

/** The rate of GETs of one leaf with 32 connections. */
export const rate: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'rate', INSTANCES)
  const all = MODES.map(() => ({
    bareRounds: [] as Round[],
    imdsRounds: [] as Round[],
    bareMib: [] as number[],
    imdsMib: [] as number[],
  }))
  for (let pair = 0; pair < effort.rounds; pair++) {
    const bare = await startBare(built, idOf(0))
    const imds = await startImds(built, env, INSTANCES)
    try {
      for (const [i, [connections]] of MODES.entries()) {
        const [bareRounds = [], imdsRounds = []] = await takeTurns([bare, imds], PATH, connections, {
          ...effort,
          rounds: 2,
        })
        all[i]!.bareRounds.push(...bareRounds)
        all[i]!.imdsRounds.push(...imdsRounds)
        all[i]!.bareMib.push(residentMib(bare.pid))
        all[i]!.imdsMib.push(residentMib(imds.pid))
      }
    } finally {
      await Promise.all([bare.stop(), imds.stop()])
    }
  }
  return MODES.map(([, title, aim], i): Table => {
    const { bareRounds, imdsRounds, bareMib, imdsMib } = all[i]!
    const ratios = imdsRounds.map(({ requestsPerSecond }, n) => requestsPerSecond / bareRounds[n]!.requestsPerSecond)
    return {
      title: `Rate, ${title}`,
      columns: ['', 'requests/s', 'p50 ms', 'p99 ms', 'CPU µs/request', 'resident MiB'],
      rows: [
        ['bare node:http', ...figures(bareRounds, bareMib)],
        ['imds', ...figures(imdsRounds, imdsMib)],
        [
          'ratio',
          ratio(imdsRounds, bareRounds, 'requestsPerSecond').toFixed(3),
          ratio(imdsRounds, bareRounds, 'p50Ms').toFixed(2),
          ratio(imdsRounds, bareRounds, 'p99Ms').toFixed(2),
          ratio(imdsRounds, bareRounds, 'cpuMicrosPerRequest').toFixed(3),
          (median(imdsMib) / median(bareMib)).toFixed(2),
        ],
        ['aim', `>= ${String(aim)}`, '', '<= 1.2', '', '<= 1.1'],
      ],
      notes: [
        `GET ${PATH}, 32 connections of wrk on another core, ${String(INSTANCES)} instances in the view; medians of ${String(effort.rounds)} pairs of processes, each warmed up for ${String(effort.warmUpSeconds)} s and measured in two rounds of ${String(effort.seconds)} s. The rounds' ratios of the rates: ${ratios.map((each) => each.toFixed(2)).join(', ')}.`,
      ],
    }
  })
}

function figures(rounds: readonly Round[], residents: readonly number[]): string[] {
  return [
    medianOf(rounds, 'requestsPerSecond').toFixed(0),
    medianOf(rounds, 'p50Ms').toFixed(2),
    medianOf(rounds, 'p99Ms').toFixed(2),
    medianOf(rounds, 'cpuMicrosPerRequest').toFixed(1),
    median(residents).toFixed(1),
  ]
}
