/**
 * What each part of a request costs when every request has its own connection: servers that each have one part more,
 * between the bare server and the daemon, take turns (part-server.ts).
 */
import { freePort } from '../support/redis/redis.ts'
import type { Part } from './bench.ts'
import { countInstructions, PATH, untilAnswers } from './instructions.ts'
import { idOf, populate } from './population.ts'
import { FLAGS, startBare, startImds, startProcess, type Launch, type Server } from './processes.ts'
import { median, type Table } from './report.ts'
import { inOne, takeTurns } from './rounds.ts'

const INSTANCES = 500
const SERVER = new URL('part-server.ts', import.meta.url).pathname

/** The parts in the order in which part-server.ts adds them. */
const PARTS: readonly string[] = [
  'bare node:http',
  '500 instances in memory',
  "+ the HTTP server's options",
  "+ the peer's address",
  '+ the guard of connections',
  '+ Fastify',
  '+ identify',
  '+ the fair share',
  '+ target, authorize, resolve',
  '+ prepared headers',
  '+ batches, metrics, trace: all of a request',
]

export const parts: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'parts', INSTANCES)
  const starts = [
    (launch?: Launch) => startBare(built, idOf(0), launch),
    ...PARTS.slice(1).map((_name, level) => (launch?: Launch) => startParts(level, launch)),
    (launch?: Launch) => startImds(built, env, INSTANCES, launch),
  ]
  const micros = starts.map((): number[] => [])
  for (let n = 0; n < effort.processes / 2; n++) {
    const servers: Server[] = []
    try {
      for (const start of starts) servers.push(await start())
      const rounds = await takeTurns(servers, PATH, 'reconnect', { warmUpSeconds: 3, rounds: 3, seconds: 1 })
      for (const [i, each] of rounds.entries()) micros[i]!.push(inOne(each).cpuMicrosPerRequest)
    } finally {
      await Promise.all(servers.map((server) => server.stop()))
    }
  }
  const counted: (number | undefined)[] = []
  for (let i = 0; i < starts.length; i += 2)
    counted.push(...(await Promise.all(starts.slice(i, i + 2).map((start) => countInstructions(built, start)))))
  const ratios = micros.map((each) => each.map((us, n) => us / micros[0]![n]!))
  const table: Table = {
    title: 'What each part costs, a connection per request',
    columns: ['', 'CPU µs/request', 'ratio to bare', 'lowest', 'highest', 'instructions/request'],
    rows: [...PARTS, 'imdsd'].map((name, i) => [
      name,
      median(micros[i]!).toFixed(1),
      median(ratios[i]!).toFixed(3),
      Math.min(...ratios[i]!).toFixed(2),
      Math.max(...ratios[i]!).toFixed(2),
      counted[i]?.toFixed(0) ?? '',
    ]),
    notes: [`Medians of ${micros[0]!.length} processes of each server, which take turns every second.`],
  }
  return [table]
}

async function startParts(level: number, launch?: Launch): Promise<Server> {
  const port = await freePort()
  const server = startProcess([SERVER, String(port), String(level)], {}, 'ignore', FLAGS, launch)
  await untilAnswers(port)
  return { ...server, port }
}
