/** Runs imdsctl as a process. */
import { IMDSCTL } from './imds.ts'
import { run } from './processes.ts'
import { programEnvironment } from './imds.ts'

/** A command that runs imdsctl with these arguments. */
export function imdsctlCommand(...args: readonly string[]): readonly string[] {
  return [process.execPath, IMDSCTL, ...args]
}

/** How imdsctl is run. `env` adds to its environment; `within` is a command that runs another one. */
export interface ImdsctlOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly input?: string
  readonly within?: readonly string[]
}

/** Runs imdsctl until it ends. */
export async function imdsctl(
  args: readonly string[],
  { env = {}, input = '', within = [] }: ImdsctlOptions = {},
): Promise<{ readonly status: number | null; readonly stdout: string; readonly stderr: string }> {
  const ended = await run([...within, ...imdsctlCommand(...args)], {
    input,
    env: { ...programEnvironment(), ...env },
  })
  return { ...ended, stdout: ended.stdout.toString() }
}
