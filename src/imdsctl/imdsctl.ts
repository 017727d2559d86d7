/**
 * The parser of imdsctl: what its commands share. The help, the manual and the completion follow from it. Each command is
 * in another file, which is loaded when the command runs, so that a start reads only what it needs.
 */
import { Command, Option } from 'commander'
import { STORE_SETTINGS } from '../store/settings.ts'
import { VERSION } from '../runtime/installation.ts'
import { addDaemonCommands } from './daemon-commands.ts'
import { buildRunner, wholeNumber, type Parts } from './runner.ts'
import { addStoreCommands } from './store-commands.ts'

const EXIT_HELP = `
Exit statuses:
  0   done
  1   no such instance; of doctor and status: warnings
  2   refused: an older revision, an address of another instance, a hypervisor that is in use, drained or unknown, or
      a region of imds-api; of doctor and status: failures
  64  wrong usage
  65  a faulty record, too much user-data, or (wait) an interface that can have no link name
  66  a file cannot be read
  69  the store or the daemon cannot be used
  70  a file of the installation is missing: it is incomplete or was just replaced. Or Node.js is too old
  71  nft rejects the rules
  74  the command finished, but its output could not be written; the last line on standard error says what was done
  75  wait: the timeout expired

Unset variables come from imds.service: from /etc/imds/imds.env (or the file in --environment-file), the unit, its
drop-ins, and their credentials, which root can read. With --store or IMDS_STORE, no secret and no certificate comes
from there.`

export function buildProgram(parts: Parts): Command {
  const program = new Command('imdsctl')
    .description('publishes, shows and removes the instances that imds serves')
    .version(VERSION, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print this text, or that of a command')
    .showHelpAfterError('(imdsctl --help lists the options)')
    .addHelpText('after', EXIT_HELP)
    .exitOverride()
  for (const { flags, help, variable } of Object.values(STORE_SETTINGS)) {
    const option = new Option(flags, help).env(variable)
    program.addOption(flags.endsWith('<n>') ? option.argParser(wholeNumber) : option)
  }
  program.option(
    '--environment-file <file>',
    'read the variables of this file, as systemd does, in place of /etc/imds/imds.env',
  )
  program.option('--json', 'print JSON')

  const runner = buildRunner(program, parts)
  addStoreCommands(program, runner)
  addDaemonCommands(program, runner)
  return program
}
