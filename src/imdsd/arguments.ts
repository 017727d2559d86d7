/**
 * The arguments of imdsd; its configuration is in the environment. main.ts loads this only if there are arguments:
 * systemd starts the daemon without any, and loading it would delay the first response.
 */
import { Command, CommanderError, Option } from 'commander'
import { VARIABLES } from './config.ts'
import { EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { describeVariables } from '../runtime/variables.ts'
import { VERSION } from '../runtime/installation.ts'

export interface Arguments {
  readonly demo?: boolean
  readonly check?: boolean
  readonly connect?: boolean
  readonly environmentFile?: string
}

/** Builds the parser, from which help, manual and completion follow. */
export function buildProgram(): Command {
  const program = new Command('imdsd')
    .description('Instance metadata service of a compute host. Runs until SIGTERM, SIGINT or SIGHUP.')
    .argument('[argument...]')
    .usage('[options]')
    .version(VERSION, '-V, --version', 'print the version')
    .option('--demo', 'serve one made-up instance on 127.0.0.1, from a temporary directory')
    .addOption(
      new Option(
        '--check',
        'check the configuration and every file that it names, without listening, connecting or writing',
      ).conflicts('demo'),
    )
    .option('--connect', 'with --check: also try the store and the rights of its user; nothing is written')
    .option(
      '--environment-file <file>',
      'with --check: read the variables of this file, as systemd does, in place of /etc/imds/imds.env',
    )
    .helpOption('-h, --help', 'print this text')
    .addHelpText(
      'after',
      `
Environment variables (docs/configuration.md describes them):

${describeVariables(VARIABLES)}

Exit statuses:
  0   stopped by SIGTERM, SIGINT or SIGHUP; with --check: the configuration is valid, and with --connect: the store can be used
  1   the service cannot continue: the last line of the log says why
  64  wrong usage
  66  the file in --environment-file cannot be read
  69  with --check --connect: the configuration is valid, but the store cannot be used
  70  this Node.js is too old
  74  with --check or --help: the output was lost, because it cannot be written
  78  the configuration is invalid: standard error names every variable at fault`,
    )
    .showHelpAfterError('(imdsd --help lists the options)')
    .exitOverride()
    .action((unknown: string[]) => {
      if (unknown.length > 0) program.error(`error: unknown argument '${unknown.join(' ')}'`)
      const { check, connect, environmentFile } = program.opts<Arguments>()
      if (connect === true && check !== true)
        program.error('error: --connect is for --check: the daemon always connects')
      if (environmentFile !== undefined && check !== true)
        program.error('error: --environment-file is for --check: the daemon has the variables of its environment')
    })
  return program
}

/** Parses the arguments. If they ask for help or the version, or are wrong, prints that and ends the process. */
export async function parseArguments(argv: readonly string[], output: Output): Promise<Arguments> {
  const program = buildProgram()
  try {
    program.parse(argv)
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error
    const status = await output.finish(error.exitCode === 0 ? 0 : EXIT.usage)
    process.exit(status)
  }
  return program.opts()
}
