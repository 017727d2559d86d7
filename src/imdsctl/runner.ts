/** How imdsctl runs a command: its output, its exit status, and the store that it needs. */
import { InvalidArgumentError, type Command } from 'commander'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { parseWhole, type Environment } from '../runtime/variables.ts'
import type { StoreSettings } from '../store/settings.ts'
import type { Context } from './commands.ts'
import { failureOf, printFailure } from './failure.ts'

/**
 * The options of every command, by commander's names: those of STORE_SETTINGS, where `--store` and `--record-keys` are
 * shorter.
 */
export type Options = Omit<StoreSettings, 'url' | 'recordKeysFile'> & {
  readonly store?: string
  readonly recordKeys?: string
  readonly environmentFile?: string
  readonly json?: boolean
}

/** What the commands need of the process. */
export interface Parts {
  readonly output: Output
  /** Its variables, and those of the service that it lacks. */
  readonly env: Environment
  /** Its variables alone. */
  readonly own: Environment
  /** Called with the exit status of a command that has one of its own. */
  readonly onStatus: (status: number) => void
}

/** Returns the action of a command that works on the store. `load` imports its function when the command runs. */
type StoreAction = <Args extends unknown[]>(
  load: () => Promise<(context: Context, ...args: Args) => Promise<unknown>>,
) => (...args: Args) => Promise<void>

/** Runs commands, and sets the exit status. */
export interface Runner extends Parts {
  /** Runs a command that only prints what it finds. It ends when nobody reads its output. */
  readonly show: (command: (options: Options) => Promise<unknown>) => Promise<void>
  /** Runs a command that changes something, or whose exit status is a result. */
  readonly work: (command: (options: Options) => Promise<unknown>) => Promise<void>
  /** The same, for commands that work on the store. */
  readonly showStore: StoreAction
  readonly workStore: StoreAction
}

export function buildRunner(program: Command, parts: Parts): Runner {
  const { output, onStatus } = parts
  /** `continues`: the command does its work even if its output is lost. */
  const run = async (continues: boolean, command: (options: Options) => Promise<unknown>) => {
    const options = program.opts<Options>()
    output.use({ json: options.json === true, continues })
    try {
      const result = await command(options)
      if (typeof result === 'number') onStatus(result)
    } catch (error) {
      const failure = failureOf(error)
      onStatus(failure.status)
      printFailure(output, failure)
    }
  }
  const onStore =
    (continues: boolean): StoreAction =>
    (load) =>
    (...args) =>
      run(continues, async (options) => (await load())(contextOf(parts, options), ...args))
  return {
    ...parts,
    show: (command) => run(false, command),
    work: (command) => run(true, command),
    showStore: onStore(false),
    workStore: onStore(true),
  }
}

export function contextOf({ output }: Parts, { store, recordKeys, ...settings }: Options): Context {
  if (store === undefined) throw new CommandFailure(EXIT.usage, 'no store: give --store or set IMDS_STORE')
  return { store: { url: store, recordKeysFile: recordKeys, ...settings }, output }
}

export function wholeNumber(text: string): number {
  const value = parseWhole(text.trim(), 1, Number.MAX_SAFE_INTEGER)
  if (value === undefined) throw new InvalidArgumentError('not a whole number of at least 1, in decimal digits')
  return value
}
