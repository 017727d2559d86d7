/**
 * What each part of a request costs when every request has its own connection: servers that each have one part more,
 * between the bare server and the daemon, take turns (part-server.ts).
 *
 * The instructions are those of the process, without the kernel, counted by Valgrind's callgrind if that is installed:
 * unlike CPU time they do not depend on other load.
 */
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, readdirSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { freePort } from '../support/redis/redis.ts'
import { until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { idOf, populate } from './population.ts'
import { FLAGS, startBare, startImds, startProcess, type Server } from './processes.ts'
import { median, type Table } from './report.ts'
import { inOne, takeTurns } from './rounds.ts'

const INSTANCES = 500
const PATH = '/latest/meta-data/instance-id'
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
  const names = [...PARTS, 'imdsd']
  const micros = names.map((): number[] => [])
  for (let n = 0; n < effort.processes / 2; n++) {
    const servers = [
      await startBare(built, idOf(0)),
      ...(await Promise.all(PARTS.slice(1).map((_name, level) => startParts(level)))),
      await startImds(built, env, INSTANCES),
    ]
    try {
      const rounds = await takeTurns(servers, PATH, 'reconnect', { warmUpSeconds: 3, rounds: 3, seconds: 1 })
      for (const [i, each] of rounds.entries()) micros[i]!.push(inOne(each).cpuMicrosPerRequest)
    } finally {
      await Promise.all(servers.map((server) => server.stop()))
    }
  }
  const hasValgrind = spawnSync('valgrind', ['--version']).status === 0
  const counted: (number | undefined)[] = []
  for (const [i] of PARTS.entries())
    counted.push(
      hasValgrind
        ? await instructions(
            (port) => (i === 0 ? [built.bare, port, idOf(0)] : [SERVER, port, String(i - 1)]),
            mkdtempSync(join(built.directory, 'callgrind-')),
          )
        : undefined,
    )
  const ratios = micros.map((each) => each.map((us, n) => us / micros[0]![n]!))
  const table: Table = {
    title: 'What each part costs, a connection per request',
    columns: ['', 'CPU µs/request', 'ratio to bare', 'lowest', 'highest', 'instructions/request'],
    rows: names.map((name, i) => [
      name,
      median(micros[i]!).toFixed(1),
      median(ratios[i]!).toFixed(3),
      Math.min(...ratios[i]!).toFixed(2),
      Math.max(...ratios[i]!).toFixed(2),
      counted[i]?.toFixed(0) ?? '',
    ]),
    notes: [`Medians of ${String(micros[0]!.length)} processes of each server, which take turns every second.`],
  }
  return [table]
}

async function startParts(level: number): Promise<Server> {
  const port = await freePort()
  const server = startProcess([SERVER, String(port), String(level)], {}, 'ignore')
  await until(() => answers(port), 'the server of parts')
  return { ...server, port }
}

const WARM_UP_REQUESTS = 30_000
const COUNTED_REQUESTS = 2_000

/** The instructions that a server executes for each request. `argumentsFor` a port: of Node.js. */
async function instructions(argumentsFor: (port: string) => readonly string[], directory: string): Promise<number> {
  const port = await freePort()
  const child = spawn(
    'valgrind',
    [
      ...[
        '--tool=callgrind',
        `--callgrind-out-file=${directory}/out`,
        '--smc-check=all-non-file',
        '--instr-atstart=no',
      ],
      ...[process.execPath, '--single-threaded', ...FLAGS, ...argumentsFor(String(port))],
    ],
    { stdio: 'ignore' },
  )
  const control = (...args: readonly string[]) =>
    execFileSync('callgrind_control', [...args, String(child.pid)], { stdio: 'ignore' })
  try {
    await until(() => answers(port), 'the server under valgrind', 60_000)
    await send(port, WARM_UP_REQUESTS)
    control('-i', 'on')
    await send(port, COUNTED_REQUESTS) // also compiles again what counting has discarded
    control('-z')
    await send(port, COUNTED_REQUESTS)
    control('-d')
    const [file = ''] = readdirSync(directory).filter((name) => /^out\.\d+$/.test(name))
    const [, total] = /^(?:totals|summary): (\d+)/m.exec(readFileSync(join(directory, file), 'utf8')) ?? []
    return Number(total) / COUNTED_REQUESTS
  } finally {
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
}

async function send(port: number, requests: number): Promise<void> {
  let left = requests
  await Promise.all(
    Array.from({ length: 8 }, async () => {
      while (left-- > 0) if (!(await answers(port))) throw new Error('no 200')
    }),
  )
}

/** Whether the server answers a request on a new connection with 200. */
function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    let text = ''
    const socket = connect(port, '127.0.0.1', () => {
      socket.write(`GET ${PATH} HTTP/1.1\r\nHost: 127.0.0.1:${String(port)}\r\nConnection: close\r\n\r\n`)
    })
    socket.setEncoding('latin1')
    socket.on('data', (part: string) => {
      text += part
    })
    socket.on('error', () => {
      resolve(false)
    })
    socket.on('close', () => {
      resolve(text.startsWith('HTTP/1.1 200 '))
    })
  })
}
