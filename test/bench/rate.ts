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
import { takeTurns } from './rounds.ts'
import type { Connections } from './wrk.ts'

const INSTANCES = 500
const MODES: readonly (readonly [Connections, string, number])[] = [
  ['keep-alive', 'keep-alive', 0.95],
  ['reconnect', 'a connection per request', 0.92],
]

/** How the servers of a pair take turns. */
const TURNS = { warmUpSeconds: 3, rounds: 4, seconds: 1 }

/** The processes of one program: the requests per second of each, and its resident memory. */
interface Measured {
  readonly perSecond: number[]
  readonly mib: number[]
}

/** The rate of GETs of one leaf with 32 connections. */
export const rate: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'rate', INSTANCES)
  const all = MODES.map(() => [0, 1].map((): Measured => ({ perSecond: [], mib: [] })))
  for (let pair = 0; pair < effort.processes; pair++) {
    const servers = [await startBare(built, idOf(0)), await startImds(built, env, INSTANCES)]
    try {
      for (const [i, [connections]] of MODES.entries()) {
        const rounds = await takeTurns(servers, PATH, connections, TURNS)
        for (const [j, { pid }] of servers.entries()) {
          all[i]![j]!.perSecond.push(median(rounds[j]!))
          all[i]![j]!.mib.push(residentMib(pid))
        }
      }
    } finally {
      await Promise.all(servers.map((server) => server.stop()))
    }
  }
  return MODES.map(([, title, aim], i): Table => {
    const [bare, imds] = all[i] as [Measured, Measured]
    const ratios = imds.perSecond.map((each, n) => each / bare.perSecond[n]!).sort((a, b) => a - b)
    const row = (name: string, { perSecond, mib }: Measured) => [
      name,
      median(perSecond).toFixed(0),
      median(mib).toFixed(1),
    ]
    return {
      title: `Rate, ${title}`,
      columns: ['', 'requests/s', 'resident MiB'],
      rows: [
        row('bare node:http', bare),
        row('imds', imds),
        ['ratio', median(ratios).toFixed(3), (median(imds.mib) / median(bare.mib)).toFixed(2)],
        ['aim', `>= ${aim}`, '<= 1.15'],
      ],
      notes: [
        `GET ${PATH}, 32 connections of wrk on another core, ${INSTANCES} instances in the view; medians of ${effort.processes} pairs of processes, ${TURNS.rounds} turns of ${TURNS.seconds} s each.`,
        `The pairs' ratios: ${ratios.map((each) => each.toFixed(2)).join(' ')}.`,
      ],
    }
  })
}
