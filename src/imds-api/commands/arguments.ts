/** The commands and options of imds-api, from which its help, manual and completion follow. */
import { Command } from 'commander'
import { EVENT_OPTIONS, type EventOptions } from '../../metadata/event-options.ts'
import type { Output } from '../../runtime/output.ts'
import { describeVariables } from '../../runtime/variables.ts'
import { VERSION } from '../../runtime/installation.ts'
import { API_VARIABLES } from '../service/config.ts'

/** What imds-api does. */
export interface Actions {
  readonly serve: () => Promise<void>
  readonly check: (connects: boolean) => Promise<void>
  readonly apply: (file: string, isDryRun: boolean) => Promise<void>
  readonly reconcile: (options: { readonly dryRun?: boolean }) => Promise<void>
  readonly doctor: () => Promise<void>
  readonly hypervisors: () => Promise<void>
  readonly drain: (name: string, isDrained: boolean) => Promise<void>
  readonly evacuate: (name: string, options: ApiEvacuateOptions) => Promise<void>
  readonly maintenance: (id: string, options: EventOptions) => Promise<void>
}

/** Options of `evacuate`. `to`: comma-separated names. */
export interface ApiEvacuateOptions {
  readonly to?: string
  readonly begin?: boolean
  readonly dryRun?: boolean
}

/** Builds the parser, which runs an action. */
export function buildProgram(output: Output, actions: Actions): Command {
  const program = new Command('imds-api')
    .description('The API of a region. Without a command: serves it until SIGTERM, SIGINT or SIGHUP.')
    .version(VERSION, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print this text')
    .option('--check', 'compare the tables of the database with this version, and change nothing')
    .option('--connect', 'with --check: also try the store and the rights of its user; nothing is written')
    .option(
      '--environment-file <file>',
      'read the variables of this file, as systemd does. Default for commands: /etc/imds/imds-api.env',
    )
    .addHelpText(
      'after',
      `
The secret of an account's first API client comes from the region file (secret_file). Clients that are created later
have no secret: POST /1.0/api_clients/ID/reset_secret returns their first secret, and each new one.

Environment variables (docs/configuration.md describes them):

${describeVariables(API_VARIABLES)}`,
    )
    .showHelpAfterError('(imds-api --help lists the commands)')
    .exitOverride()
    .hook('preAction', (_program, command) => {
      output.use({ json: command.opts<{ json?: boolean }>().json === true, continues: true })
      const { check, connect } = program.opts<{ check?: boolean; connect?: boolean }>()
      if (connect === true && (check !== true || command !== program))
        program.error('error: --connect is for --check: the service always connects')
    })
    .action(async (options: { check?: boolean; connect?: boolean }) => {
      await (options.check === true ? actions.check(options.connect === true) : actions.serve())
    })
  program
    .command('apply')
    .argument('<file>', 'the region file')
    .description('apply a region file to the database')
    .option('--dry-run', 'print the difference and change nothing')
    .action(async (file: string, options: { dryRun?: boolean }) => {
      await actions.apply(file, options.dryRun === true)
    })
  program
    .command('reconcile')
    .description(
      'publish every difference between the database and the store, and name servers that only the store has: for a ' +
        'doubtful store, and after a restore of the database, before imds-api starts',
    )
    .option('--dry-run', 'print the differences, and change nothing: the exit status is 1 if there are any')
    .action(actions.reconcile)
  program
    .command('doctor')
    .description(
      'check everything that imds-api needs on this host, and print remedies. ' +
        'Exit status: 0 if all is well, 1 if there are warnings, 2 if there are failures',
    )
    .option('--json', 'print JSON')
    .action(actions.doctor)
  addHypervisorCommands(program, actions)
  return program
}

function addHypervisorCommands(program: Command, actions: Actions): void {
  program
    .command('hypervisors')
    .description('list the hypervisors: servers, free RAM, start of the drain, and announcements of their daemons')
    .action(actions.hypervisors)
  program
    .command('drain')
    .argument('<name>', 'the name of a hypervisor')
    .description('give a hypervisor no new servers, and no live migrations to it')
    .action((name: string) => actions.drain(name, true))
  program
    .command('undrain')
    .argument('<name>', 'the name of a hypervisor')
    .description('end the drain of a hypervisor')
    .action((name: string) => actions.drain(name, false))
  program
    .command('evacuate')
    .argument('<name>', 'the name of a hypervisor')
    .description('move the servers of a hypervisor to others of their zones; it can run again')
    .option('--to <names>', 'only to these hypervisors, comma-separated (default: those with the most free RAM)')
    .option('--begin', 'begin live migrations; run it again without --begin when the guests have moved')
    .option('--dry-run', 'print what would be done, and change nothing')
    .action(actions.evacuate)
  const maintenance = program
    .command('maintenance')
    .argument('<id>', 'the id of a server')
    .description('announce maintenance of a server to its guest, end it, or list its events')
  for (const [flags, help] of EVENT_OPTIONS) maintenance.option(flags, help)
  maintenance.action(actions.maintenance)
}
