/** Runs imdsctl: in the process of the test, where that is the same, because a process takes 0.2 s of CPU time to start. */
import { PassThrough } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import type { Command } from 'commander'
import { buildProgram } from '../../../src/imdsctl/imdsctl.ts'
import { EXIT } from '../../../src/runtime/exit-status.ts'
import { Output } from '../../../src/runtime/output.ts'
import { STORE_SETTINGS } from '../../../src/store/settings.ts'
import { IMDSCTL, programEnvironment } from './imds.ts'
import { run } from './processes.ts'

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

/** Runs imdsctl until it ends. It is a process if it reads its standard input, or runs within another command. */
export async function imdsctl(
  args: readonly string[],
  { env = {}, input = '', within = [] }: ImdsctlOptions = {},
): Promise<{ readonly status: number | null; readonly stdout: string; readonly stderr: string }> {
  if (within.length === 0 && !args.includes('-')) return runInProcess(args, env)
  const ended = await run([...within, ...imdsctlCommand(...args)], {
    input,
    env: { ...programEnvironment(), ...env },
  })
  return { ...ended, stdout: ended.stdout.toString() }
}

/** What src/imdsctl/main.ts does, with an environment that is not that of the process. */
async function runInProcess(args: readonly string[], env: Readonly<Record<string, string>>) {
  const [stdout, stderr] = [new PassThrough(), new PassThrough()]
  const output = new Output('imdsctl', stdout, stderr, () => undefined)
  let status: number = EXIT.done
  const program = buildProgram({
    output,
    env: { ...programEnvironment(), ...env },
    own: env,
    onStatus: (of) => {
      status = of
    },
  })
  printTo(program, stdout, stderr)
  // commander reads the variables of the process
  const settings = Object.values(STORE_SETTINGS).flatMap(({ variable, flags }) =>
    env[variable] === undefined ? [] : [/--[\w-]+/.exec(flags)![0], env[variable]],
  )
  const texts = Promise.all([stdout, stderr].map(buffer))
  await program.parseAsync([...settings, ...args], { from: 'user' }).catch((error: unknown) => {
    const { code, exitCode } = error as { code?: string; exitCode?: number }
    if (code?.startsWith('commander.') !== true) throw error
    status = exitCode === 0 ? EXIT.done : EXIT.usage
  })
  stdout.end()
  stderr.end()
  const [printed, said] = await texts
  return { status, stdout: printed!.toString(), stderr: said!.toString() }
}

/** Sets where the help and the errors of a command and its subcommands go. */
function printTo(command: Command, stdout: PassThrough, stderr: PassThrough): void {
  command.configureOutput({ writeOut: (text) => stdout.write(text), writeErr: (text) => stderr.write(text) })
  for (const each of command.commands) printTo(each, stdout, stderr)
}
