/**
 * The rate of requests, compared with a bare `node:http` server.
 *
 * Two processes of the same program can differ by a fifth for their whole life. So many processes of both are measured,
 * in pairs that take turns every second, and a ratio is the median of the pairs' ratios.
 */
import type { Part } from './bench.ts'
import { PATH } from './guest.ts'
import { idOf, populate } from './population.ts'
import { residentMib, startBare, startImds } from './processes.ts'
import { median, type Table } from './report.ts'
import { inOne, medianOf, ratio, takeTurns, type Round } from './rounds.ts'
import type { Connections } from './wrk.ts'

const INSTANCES = 500
const MODES: readonly (readonly [Connections, string, number])[] = [
  ['keep-alive', 'keep-alive', 0.95],
  ['reconnect', 'a connection per request', 0.92],
]

/** How the servers of a pair take turns. */
const TURNS = { warmUpSeconds: 3, rounds: 4, seconds: 1 }

/** The processes of one program: a round for each, and its resident memory. */
interface Measured {
  readonly rounds: Round[]
  readonly mib: number[]
}

/** The rate of GETs of one leaf with 32 connections. */
export const rate: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'rate', INSTANCES)
  const all = MODES.map(() => [0, 1].map((): Measured => ({ rounds: [], mib: [] })))
  for (let pair = 0; pair < effort.processes; pair++) {
    const servers = [await startBare(built, idOf(0)), await startImds(built, env, INSTANCES)]
    try {
      for (const [i, [connections]] of MODES.entries()) {
        const rounds = await takeTurns(servers, PATH, connections, TURNS)
        for (const [j, { pid }] of servers.entries()) {
          all[i]![j]!.rounds.push(inOne(rounds[j]!))
          all[i]![j]!.mib.push(residentMib(pid))
        }
      }
    } finally {
      await Promise.all(servers.map((server) => server.stop()))
    }
  }
  return MODES.map(([, title, aim], i): Table => {
    const [bare, imds] = all[i] as [Measured, Measured]
    const spread = (figure: 'requestsPerSecond' | 'cpuMicrosPerRequest') =>
      imds.rounds
        .map((round, n) => round[figure] / bare.rounds[n]![figure])
        .sort((a, b) => a - b)
        .map((each) => each.toFixed(2))
        .join(' ')
    return {
      title: `Rate, ${title}`,
      columns: ['', 'requests/s', 'p50 ms', 'p99 ms', 'CPU µs/request', 'resident MiB'],
      rows: [
        ['bare node:http', ...figures(bare)],
        ['imds', ...figures(imds)],
        [
          'ratio',
          ratio(imds.rounds, bare.rounds, 'requestsPerSecond').toFixed(3),
          ratio(imds.rounds, bare.rounds, 'p50Ms').toFixed(2),
          ratio(imds.rounds, bare.rounds, 'p99Ms').toFixed(2),
          ratio(imds.rounds, bare.rounds, 'cpuMicrosPerRequest').toFixed(3),
          (median(imds.mib) / median(bare.mib)).toFixed(2),
        ],
        ['aim', `>= ${aim}`, '', '<= 1.2', '<= 1.1', '<= 1.15'],
      ],
      notes: [
        `GET ${PATH}, 32 connections of wrk on another core, ${INSTANCES} instances in the view; medians of ${effort.processes} pairs of processes, each warmed up for ${TURNS.warmUpSeconds} s and measured for ${TURNS.rounds} s.`,
        `The pairs' ratios of the rates: ${spread('requestsPerSecond')}.`,
        `The pairs' ratios of the CPU times: ${spread('cpuMicrosPerRequest')}.`,
      ],
    }
  })
}

function figures({ rounds, mib }: Measured): string[] {
  return [
    medianOf(rounds, 'requestsPerSecond').toFixed(0),
    medianOf(rounds, 'p50Ms').toFixed(2),
    medianOf(rounds, 'p99Ms').toFixed(2),
    medianOf(rounds, 'cpuMicrosPerRequest').toFixed(1),
    median(mib).toFixed(1),
  ]
}
