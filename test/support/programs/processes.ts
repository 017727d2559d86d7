/**
 * Child processes for tests.
 *
 * A child of `startChild` ends when its input ends, at the latest when the test process ends. So it leaves no
 * namespace, mount or interface behind.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'

/** A running child process. */
export interface Child {
  readonly pid: number
  /** The text after `up` in its first line of output. */
  readonly readyValue: string
  /** Calls the listener with each further line of output. */
  onLine(listener: (line: string) => void): void
  /** Writes one line to its input. */
  writeLine(line: string): void
  /** Resolves when it has ended. */
  readonly ended: Promise<unknown>
  /** Closes its input and waits until it has ended. */
  stop(): Promise<void>
}

/** The result of a command. */
export interface Ran {
  readonly status: number | null
  readonly stdout: Buffer
  readonly stderr: string
}

/** Starts a child process and waits until it prints its first line, `up` or `up VALUE`. */
export async function startChild(command: readonly string[]): Promise<Child> {
  const child = spawn(command[0]!, command.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] })
  child.stdin.on('error', () => undefined)
  const ended = once(child, 'close')
  const lines = createInterface({ input: child.stdout })
  const [first] = (await Promise.race([once(lines, 'line'), ended])) as unknown[]
  const [up, readyValue = ''] = String(first).split(' ')
  if (up !== 'up') throw new Error(`${command.join(' ')} did not start: ${String(first)}`)
  return {
    pid: child.pid!,
    readyValue,
    ended,
    onLine: (listener) => lines.on('line', listener),
    writeLine: (line) => child.stdin.write(`${line}\n`),
    stop: async () => {
      child.stdin.end()
      await ended
    },
  }
}

/** Runs a command until it ends. Rejects if it cannot be started; the caller checks its status. */
export async function run(
  command: readonly string[],
  { input = '', env = process.env }: { input?: string | Uint8Array; env?: NodeJS.ProcessEnv } = {},
): Promise<Ran> {
  const child = spawn(command[0]!, command.slice(1), { stdio: 'pipe', env })
  child.stdin.on('error', () => undefined).end(input)
  const ended = once(child, 'close')
  const [stdout, stderr] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => Buffer.concat((await stream.toArray()) as Buffer[])),
  )
  await ended
  return { status: child.exitCode, stdout: stdout!, stderr: stderr!.toString() }
}

/** Runs a command and returns its output. Rejects if its status is not 0. */
export async function must(command: readonly string[], options: Parameters<typeof run>[1] = {}): Promise<Buffer> {
  const { status, stdout, stderr } = await run(command, options)
  if (status !== 0) throw new Error(`${command.join(' ')} ended with ${String(status)}: ${stderr}`)
  return stdout
}
