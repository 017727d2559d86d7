/**
 * The time from the start of the process to its first response with status 200.
 *
 * Each process is started on the server's core and gets requests without a pause; the bare server and the daemon take
 * turns.
 */
import { cpSync, mkdirSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { freePort } from '../support/redis/redis.ts'
import type { Part } from './bench.ts'
import { populate } from './population.ts'
import { startImds, startProcess } from './processes.ts'
import { quantile } from './report.ts'

const INSTANCES = 500
const ROUNDS = 15
const TIMEOUT_MS = 30_000

/**
 * Starts of the bare server and of the daemon, from a journal without Redis. Both have a cache of compiled
 * code, as in the unit.
 */
export const start: Part = async ({ built, redisUrl }) => {
  const state = join(built.directory, 'start')
  const saved = join(built.directory, 'start-saved')
  mkdirSync(state, { mode: 0o700 })
  const env = { ...(await populate(redisUrl, 'start', INSTANCES)), IMDS_STATE_DIR: state }
  const cache = { NODE_COMPILE_CACHE: join(built.directory, 'compiled') }
  await (await startImds(built, { ...env, ...cache }, INSTANCES)).stop() // writes its journal and the cache
  cpSync(state, saved, { recursive: true, preserveTimestamps: true })
  const imds = async (port: number) => {
    rmSync(state, { recursive: true })
    cpSync(saved, state, { recursive: true, preserveTimestamps: true })
    return firstAnswer(port, [built.main], {
      ...env,
      ...cache,
      IMDS_STORE: 'redis://127.0.0.1:1',
      IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
      IMDS_OPERATOR_SOCKET: join(built.directory, 'operator.sock'),
      IMDS_LISTEN: `127.0.0.1:${port}`,
    })
  }
  const cases: readonly [string, (port: number) => Promise<number>][] = [
    ['a bare node:http server', (port) => firstAnswer(port, [built.bare, String(port), 'x'], cache)],
    ['imds from its journal, without Redis', imds],
  ]
  const times = cases.map((): number[] => [])
  for (let round = 0; round < ROUNDS; round++) {
    for (const [i, [, run]] of cases.entries()) times[i]!.push(await run(await freePort()))
  }
  const bare = quantile(times[0]!, 0.5)
  return [
    {
      title: 'From the start of the process to its first response',
      columns: ['ms', 'median', 'p90', 'ratio to bare'],
      rows: cases.map(([name], i) => [
        name,
        quantile(times[i]!, 0.5).toFixed(0),
        quantile(times[i]!, 0.9).toFixed(0),
        (quantile(times[i]!, 0.5) / bare).toFixed(2),
      ]),
      notes: [
        `${INSTANCES} instances with 1 KiB of user-data; ${ROUNDS} starts of each, taking turns. The aim: at most 1.6 times the bare server's start.`,
      ],
    },
  ]
}

/** Milliseconds from the start of a process to its first 200. Rejects after TIMEOUT_MS. */
async function firstAnswer(
  port: number,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<number> {
  const startedMs = performance.now()
  const server = startProcess(args, env, 'ignore')
  try {
    while (!(await answers200(port))) {
      if (performance.now() > startedMs + TIMEOUT_MS) throw new Error(`no 200 from ${args[0]!} in ${TIMEOUT_MS} ms`)
      await new Promise((resolve) => setTimeout(resolve, 1))
    }
    return performance.now() - startedMs
  } finally {
    await server.stop()
  }
}

async function answers200(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write('GET /latest/meta-data/instance-id HTTP/1.0\r\n\r\n'))
    socket.setEncoding('latin1')
    socket.on('data', (text: string) => {
      resolve(text.startsWith('HTTP/1.1 200 '))
      socket.destroy()
    })
    socket.on('close', () => resolve(false))
    socket.on('error', () => resolve(false))
  })
}
