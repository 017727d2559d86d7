/**
 * The processes of a measurement: where they run, and how much CPU time and memory they use (read from /proc).
 *
 * The measured server has core 0 for itself; wrk, Redis and this process share core 1. The daemon runs as it is
 * installed: bundled JavaScript, with the flags of its unit.
 */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  closeSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { freePort } from '../support/redis/redis.ts'
import { ENDLESS_SHARE, request, until } from '../support/programs/daemon.ts'
import { buildInto } from '../support/programs/imds.ts'

const ROOT = new URL('../../', import.meta.url).pathname
/** The core that only the measured server uses. */
const SERVER_CORE = '0'
/** The core of all other processes of a measurement. */
const LOAD_CORE = '1'
/** V8's options in imds-api.service. */
export const API_FLAGS: readonly string[] = ['--max-semi-space-size=2', '--no-concurrent-recompilation']
/** Those in imds.service. */
export const FLAGS: readonly string[] = [
  '--max-semi-space-size=2',
  '--max-old-space-size=1024',
  '--no-parallel-scavenge',
  '--no-concurrent-recompilation',
]
const MIB = 1024 * 1024

/** A measured server. */
export interface Server {
  readonly pid: number
  /** The port of guests on 127.0.0.1. */
  readonly port: number
  stop(): Promise<void>
}

/** The entry points of the daemon and of the bare server, as JavaScript, and the temporary folder that has them. */
export interface Built {
  readonly main: string
  readonly bare: string
  readonly directory: string
}

/** Builds the programs as `npm run build` does. */
export function build(): Built {
  const directory = mkdtempSync(join(tmpdir(), 'imds-bench-'))
  writeFileSync(join(directory, 'package.json'), '{"type":"module"}')
  symlinkSync(join(ROOT, 'node_modules'), join(directory, 'node_modules'))
  const bare = join(directory, 'bare.js')
  writeFileSync(bare, stripTypeScriptTypes(readFileSync(new URL('bare.ts', import.meta.url), 'utf8')))
  buildInto(join(directory, 'dist'))
  return { main: join(directory, 'dist/main.js'), bare, directory }
}

/** Moves this process, and those that it starts later, away from the server's core. */
export function moveToLoadCore(): void {
  execFileSync('taskset', ['-a', '-c', '-p', LOAD_CORE, String(process.pid)], { stdio: 'ignore' })
}

/** Starts the bare server, which answers 200 with `body`. */
export async function startBare({ bare }: Built, body: string): Promise<Server> {
  const port = await freePort()
  const server = startProcess([bare, String(port), body], {}, 'ignore', FLAGS)
  await untilAnswers(port, '/')
  return { ...server, port }
}

/**
 * Starts the daemon, and waits until it serves all instances. Its state is new unless `env` names another directory, and
 * its log goes to a file in the build's folder.
 */
export async function startImds(
  { main, directory }: Built,
  env: Readonly<Record<string, string>>,
  instances: number,
  nodeArgs: readonly string[] = [],
): Promise<Server & { readonly operatorPort: number }> {
  const [port, operatorPort] = [await freePort(), await freePort()]
  const state = mkdtempSync(join(directory, 'state-')) // two daemons cannot share one
  const log = openSync(join(directory, 'log'), 'a')
  const server = startProcess(
    [main],
    {
      IMDS_LISTEN: `127.0.0.1:${port}`,
      IMDS_OPERATOR_LISTEN: `127.0.0.1:${operatorPort}`,
      IMDS_OPERATOR_SOCKET: join(state, 'operator.sock'),
      IMDS_STATE_DIR: state,
      ...ENDLESS_SHARE,
      ...env,
    },
    log,
    [...FLAGS, ...nodeArgs],
  )
  closeSync(log)
  await untilAnswers(operatorPort, '/livez')
  const readiness = async () =>
    JSON.parse((await request(operatorPort, '/readyz')).body.toString()) as { ready: boolean; instances: number }
  await until(
    async () => {
      const { ready, instances: count } = await readiness()
      return ready && count === instances
    },
    `the daemon to serve ${instances} instances`,
    120_000,
  )
  return { ...server, port, operatorPort }
}

/** Starts a server on its core, with the flags of a unit: that of the daemon, if not given. */
export function startProcess(
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  stdout: 'ignore' | number,
  flags: readonly string[] = FLAGS,
): Omit<Server, 'port'> {
  const child = spawn('taskset', ['-c', SERVER_CORE, process.execPath, ...flags, ...args], {
    env: { PATH: process.env['PATH'], ...env },
    stdio: ['ignore', stdout, 'inherit'],
  })
  return {
    pid: child.pid!,
    stop: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}

async function untilAnswers(port: number, path: string): Promise<void> {
  await until(
    () =>
      request(port, path).then(
        () => true,
        () => false,
      ),
    `an answer on port ${port}`,
  )
}

/** Resident memory of a process, in MiB. */
export function residentMib(pid: number): number {
  return (Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024) / MIB
}

/** The CPU time of a process, in seconds: of all threads that have not ended, to the nanosecond. */
export function cpuSeconds(pid: number): number {
  const threads = readdirSync(`/proc/${pid}/task`)
  const nanoseconds = threads.map((thread) =>
    Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]),
  )
  return nanoseconds.reduce((sum, each) => sum + each) / 1e9
}

/** Removes the folder that `build` made. */
export function clean({ directory }: Built): void {
  rmSync(directory, { recursive: true, force: true })
}
