/**
 * Runs the commands of `npm test`, each in a session and with a temporary folder of its own, measures their CPU time, and
 * finds what they leave.
 */
import { spawn } from 'node:child_process'
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

/** How long a process may take to end after the command that started it. */
const END_MS = 2_000

/** The commands that run: the session of each, and its temporary folder. */
const running = new Map<number, string>()

/** SIGINT or SIGTERM to this process ends what the commands have started. */
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

/** Runs a command. One that takes longer than `timeoutMs` is killed. Ends what it leaves. */
export async function runCommand(
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  timeoutMs: number,
): Promise<Outcome> {
  const folder = mkdtempSync(join(tmpdir(), 'imds-'))
  chmodSync(folder, 0o1777) // some tests run the programs as another user
  const child = spawn('bash', ['-c', TIMED, 'bash', ...command], {
    env: { ...process.env, ...env, TMPDIR: folder },
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    timeout: timeoutMs,
    killSignal: 'SIGKILL',
    detached: true, // a session of its own
  })
  const session = child.pid!
  running.set(session, folder)
  const ended = once(child, 'exit').then(() => endAll(session, folder)) // they may keep the output open
  const [, ...outputs] = child.stdio
  const [stdout, stderr, times] = await Promise.all(
    outputs.map(async (stream) =>
      Buffer.concat(await (stream as NodeJS.ReadableStream & { toArray(): Promise<Buffer[]> }).toArray()).toString(),
    ),
  )
  const processes = await ended
  running.delete(session)
  const [user = 0, system = 0] = times!.trim().split(' ').map(Number)
  const left = [
    ...processes.map((line) => `left running: ${line}`),
    ...readdirSync(folder).map((name) => `left in the temporary folder: ${name}`),
  ]
  rmSync(folder, { recursive: true, force: true })
  return { status: child.exitCode ?? undefined, stdout: stdout!, stderr: stderr!, cpuSeconds: user + system, left }
}

/** Waits until a session has no process, also none with its temporary folder. Kills and returns those that stay. */
async function endAll(session: number, folder: string): Promise<readonly string[]> {
  for (const startedMs = performance.now(); performance.now() - startedMs < END_MS;) {
    if (processesOf(session, folder).length === 0) return []
    await sleep(20)
  }
  return processesOf(session, folder).map(({ pid, line }) => {
    end(pid)
    return line
  })
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
