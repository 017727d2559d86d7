/** Runs the commands of `npm test`, each in a process group of its own, and measures their CPU time. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'

/** What a command wrote, its exit status (undefined: a signal ended it), and the CPU time of all its processes. */
export interface Outcome {
  readonly status: number | undefined
  readonly stdout: string
  readonly stderr: string
  readonly cpuSeconds: number
}

/** The process groups of the commands that run. */
const groups = new Set<number>()

/** SIGINT or SIGTERM to this process ends what the commands have started. */
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => {
    for (const group of groups) endGroup(group)
    process.kill(process.pid, signal) // without this listener, it ends the process
  })

/** Writes the times of a command to descriptor 3. Node cannot tell those of one child. */
const TIMED = 'TIMEFORMAT="%U %S"; { time "$@" 2>&4; } 4>&2 2>&3'

/** Runs a command. One that takes longer than `timeoutMs` is killed. Its end ends all processes that it has left. */
export async function runCommand(
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  timeoutMs: number,
): Promise<Outcome> {
  const child = spawn('bash', ['-c', TIMED, 'bash', ...command], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    timeout: timeoutMs,
    killSignal: 'SIGKILL',
    detached: true, // its group has what it starts
  })
  groups.add(child.pid!)
  // What the command has left running keeps the output open: it ends with the group.
  child.once('exit', () => {
    endGroup(child.pid!)
  })
  const [, ...outputs] = child.stdio
  const [stdout, stderr, times] = await Promise.all(
    outputs.map(async (stream) =>
      Buffer.concat(await (stream as NodeJS.ReadableStream & { toArray(): Promise<Buffer[]> }).toArray()).toString(),
    ),
  )
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  const [user = 0, system = 0] = times!.trim().split(' ').map(Number)
  return { status: child.exitCode ?? undefined, stdout: stdout!, stderr: stderr!, cpuSeconds: user + system }
}

function endGroup(group: number): void {
  groups.delete(group)
  try {
    process.kill(-group, 'SIGKILL')
  } catch {
    // no process is left
  }
}
