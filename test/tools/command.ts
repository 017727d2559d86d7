/**
 * Starts the processes of `npm test`, each in a session and with a temporary folder of its own, measures their CPU time,
 * and finds what they leave.
 */
import { spawn, type ChildProcess, type StdioOptions } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * What a command wrote, its exit status (undefined: a signal ended it), and the CPU time of all its processes. `left`: the
 * processes and the temporary files that it left, a line each.
 */
export interface Outcome {
  readonly status: number | undefined
  readonly stdout: string
  readonly stderr: string
  readonly cpuSeconds: number
  readonly left: readonly string[]
}

/** How long a process may take to end after what started it. */
const END_MS = 2_000

/** A process that leads a session, and its temporary folder. */
export interface Session {
  readonly child: ChildProcess
  readonly folder: string
}

/** The sessions that run, and the temporary folder of each. */
const running = new Map<number, string>()

/** SIGINT or SIGTERM to this process ends what the sessions have started. */
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => {
    for (const [session, folder] of running) {
      for (const { pid } of processesOf(session, folder)) end(pid)
      rmSync(folder, { recursive: true, force: true })
    }
    process.kill(process.pid, signal) // without this listener, it ends the process
  })

/** Writes the times of a command to descriptor 3. Node cannot tell those of one child. */
const TIMED = 'TIMEFORMAT="%U %S"; { time "$@" 2>&4; } 4>&2 2>&3'

/** Starts a process in a session of its own. */
export function startSession(
  command: readonly [string, ...string[]],
  env: Readonly<Record<string, string>>,
  stdio: StdioOptions,
): Session {
  const folder = mkdtempSync(join(tmpdir(), 'imds-'))
  chmodSync(folder, 0o1777) // some tests run the programs as another user
  const [program, ...args] = command
  const child = spawn(program, args, { env: { ...process.env, ...env, TMPDIR: folder }, stdio, detached: true })
  running.set(child.pid!, folder)
  return { child, folder }
}

/** Removes the temporary folder of a session that has no process. */
export function closeSession({ child, folder }: Session): void {
  running.delete(child.pid!)
  rmSync(folder, { recursive: true, force: true })
}

/**
 * Waits until a session has no process but `kept`. Kills those that stay. Returns them and the temporary files that are
 * left, a line each.
 */
export async function leftBy({ child, folder }: Session, kept?: number): Promise<readonly string[]> {
  const processes = () => processesOf(child.pid!, folder).filter(({ pid }) => pid !== kept)
  for (const startedMs = performance.now(); processes().length > 0 && performance.now() - startedMs < END_MS;)
    await sleep(20)
  return [
    ...processes().map(({ pid, line }) => {
      end(pid)
      return `left running: ${line}`
    }),
    ...readdirSync(folder).map((name) => `left in the temporary folder: ${name}`),
  ]
}

/** Runs a command. One that takes longer than `timeoutMs` is killed. Ends what it leaves. */
export async function runCommand(
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  timeoutMs: number,
): Promise<Outcome> {
  const session = startSession(['bash', '-c', TIMED, 'bash', ...command], env, ['ignore', 'pipe', 'pipe', 'pipe'])
  const { child } = session
  const timer = setTimeout(() => child.kill('SIGKILL'), timeoutMs)
  const ended = once(child, 'exit').then(() => leftBy(session)) // they may keep the output open
  const [, ...outputs] = child.stdio
  const [stdout, stderr, times] = await Promise.all(
    outputs.map(async (stream) =>
      Buffer.concat(await (stream as NodeJS.ReadableStream & { toArray(): Promise<Buffer[]> }).toArray()).toString(),
    ),
  )
  const left = await ended
  clearTimeout(timer)
  closeSession(session)
  const [user = 0, system = 0] = times!.trim().split(' ').map(Number)
  return { status: child.exitCode ?? undefined, stdout: stdout!, stderr: stderr!, cpuSeconds: user + system, left }
}

/** The processes of a session, and those that left it with its temporary folder in their environment. */
function processesOf(session: number, folder: string): { readonly pid: number; readonly line: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      const read = (file: string) => readFileSync(`/proc/${name}/${file}`, 'utf8')
      try {
        // proc(5): after the name in brackets come the state, the parent, the group and the session
        const [state, , , itsSession] = read('stat')
          .replace(/^.*\) /s, '')
          .split(' ')
        if (state === 'Z') return []
        const isOf = Number(itsSession) === session || read('environ').includes(folder)
        return isOf ? [{ pid: Number(name), line: read('cmdline').replaceAll('\0', ' ') }] : []
      } catch {
        return [] // it has ended
      }
    })
}

function end(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // it has ended
  }
}
