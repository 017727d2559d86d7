/**
 * Processes that live as long as a test: each ends when its input ends, which happens at the latest when the test process ends. So no namespace,
 * mount or interface that depends on one stays behind.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'

/** A held process. */
export interface Held {
  readonly pid: number
  /** The rest of its first line, after `up`. */
  readonly word: string
  /** Calls back with each line that it prints from now on. */
  listen(listener: (line: string) => void): void
  /** Writes one line to its input. */
  tell(line: string): void
  /** Resolves once it has ended. */
  readonly ended: Promise<unknown>
  /** Ends it. */
  release(): Promise<void>
}

/** The result of a command. */
export interface Ran { readonly status: number | null, readonly stdout: Buffer, readonly stderr: string }

/** Starts a process and waits for its first line, `up` or `up WORD`. */
export async function startHeld(command: readonly string[]): Promise<Held> {
  const child = spawn(command[0]!, command.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] })
  child.stdin.on('error', () => { /* it ended before its input did: `ended` tells */ })
  const ended = once(child, 'close')
  const lines = createInterface({ input: child.stdout })
  const [first] = await Promise.race([once(lines, 'line'), ended]) as unknown[]
  const [up, word = ''] = String(first).split(' ')
  if (up !== 'up') throw new Error(`${command.join(' ')} did not come up: ${String(first)}`)
  return {
    pid: child.pid!, word, ended,
    listen: (listener) => { lines.on('line', listener) },
    tell: (line) => { child.stdin.write(`${line}\n`) },
    release: async () => {
      child.stdin.end()
      await ended
    },
  }
}

/** Runs a command until it ends. Rejects if it cannot be started; the caller checks its status. */
export async function run(command: readonly string[], { input = '', env = process.env }: { input?: string, env?: NodeJS.ProcessEnv } = {}): Promise<Ran> {
  const child = spawn(command[0]!, command.slice(1), { stdio: 'pipe', env })
  child.stdin.on('error', () => { /* it did not want its input */ }).end(input)
  const ended = once(child, 'close')
  const [stdout, stderr] = await Promise.all([child.stdout, child.stderr].map(async (stream) => Buffer.concat(await stream.toArray() as Buffer[])))
  await ended
  return { status: child.exitCode, stdout: stdout!, stderr: stderr!.toString() }
}

/** Runs a command and returns its output. Rejects if its status is not 0. */
export async function must(command: readonly string[], options: Parameters<typeof run>[1] = {}): Promise<Buffer> {
  const { status, stdout, stderr } = await run(command, options)
  if (status !== 0) throw new Error(`${command.join(' ')} ended with ${String(status)}: ${stderr}`)
  return stdout
}
