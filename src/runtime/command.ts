import { execFile } from 'node:child_process'

export interface CommandResult {
  readonly status: number
  readonly stdout: string
}

/** A command that takes longer has failed. */
const COMMAND_TIMEOUT_MS = 10_000
/** What a command may print. */
const MAX_OUTPUT_BYTES = 16 * 1024 * 1024

/** Runs a command. Undefined: it cannot be started, or does not end in time. */
export function runCommand([file = '', ...args]: readonly string[], input = ''): Promise<CommandResult | undefined> {
  return new Promise((resolve) => {
    const child = execFile(
      file,
      args,
      { timeout: COMMAND_TIMEOUT_MS, killSignal: 'SIGKILL', maxBuffer: MAX_OUTPUT_BYTES },
      (error, stdout) => {
        const status = error ? error.code : 0
        resolve(typeof status === 'number' ? { status, stdout } : undefined)
      },
    )
    child.stdin?.on('error', () => undefined) // it ended without reading its input
    child.stdin?.end(input)
  })
}
