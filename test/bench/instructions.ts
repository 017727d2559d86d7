/**
 * The instructions that a server executes for each request, without those of the kernel: counted by Valgrind's
 * callgrind. Unlike CPU time they do not depend on the caches, on the core, or on the process.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, readdirSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { until } from '../support/programs/daemon.ts'
import { LOAD_CORE, SERVER_CORE, type Built, type Launch, type Server } from './processes.ts'

export const PATH = '/latest/meta-data/instance-id'
const WARM_UP_REQUESTS = 30_000
/** In which callgrind translates all code again, when it begins to count. */
const TRANSLATED_REQUESTS = 2_000
/** As many as several collections of old objects, each of which takes as many instructions as 700 requests. */
const COUNTED_REQUESTS = 16_000
const CONNECTIONS = 8

/**
 * Starts a server by `start`, on any core, and counts the instructions of a request with its own connection. Undefined:
 * Valgrind is not installed.
 */
export async function countInstructions(
  { directory }: Built,
  start: (launch: Launch) => Promise<Server>,
): Promise<number | undefined> {
  if (spawnSync('valgrind', ['--version']).status !== 0) return undefined
  const out = mkdtempSync(join(directory, 'callgrind-'))
  const server = await start({
    within: [
      ...['taskset', '-c', `${SERVER_CORE},${LOAD_CORE}`],
      ...['valgrind', '--quiet', '--tool=callgrind', `--callgrind-out-file=${join(out, 'out')}`],
      ...['--smc-check=all-non-file', '--instr-atstart=no'],
    ],
    nodeArgs: ['--single-threaded'],
  })
  const control = (option: readonly string[]) =>
    execFileSync('callgrind_control', [...option, String(server.pid)], { stdio: 'ignore' })
  try {
    await send(server.port, WARM_UP_REQUESTS)
    control(['-i', 'on'])
    await send(server.port, TRANSLATED_REQUESTS)
    control(['-z'])
    await send(server.port, COUNTED_REQUESTS)
    control(['-d'])
    const [file = ''] = readdirSync(out).filter((name) => /^out\.\d+$/.test(name))
    const [, total] = /^(?:totals|summary): (\d+)/m.exec(readFileSync(join(out, file), 'utf8')) ?? []
    return Number(total) / COUNTED_REQUESTS
  } finally {
    await server.stop()
  }
}

/** Waits until a server answers. */
export async function untilAnswers(port: number): Promise<void> {
  await until(() => isAnswered(port), `an answer on port ${port}`, 300_000)
}

async function send(port: number, requests: number): Promise<void> {
  let left = requests
  await Promise.all(
    Array.from({ length: CONNECTIONS }, async () => {
      while (left-- > 0) if (!(await isAnswered(port))) throw new Error('a request got no 200')
    }),
  )
}

/** Whether the server answers a request on a new connection with 200. */
function isAnswered(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    let text = ''
    const socket = connect(port, '127.0.0.1', () => {
      socket.write(`GET ${PATH} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nConnection: close\r\n\r\n`)
    })
    socket.setEncoding('latin1')
    socket.on('data', (part: string) => {
      text += part
    })
    socket.on('error', () => resolve(false))
    socket.on('close', () => resolve(text.startsWith('HTTP/1.1 200 ')))
  })
}
