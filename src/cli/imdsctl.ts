/**
 * The commands and options of imdsctl, from which its help, manual and completion follow. Each command is in another
 * file, which is loaded when the command runs, so that a start reads only what it needs.
 */
import { Argument, Command, InvalidArgumentError, Option } from 'commander'
import { STORE_SETTINGS, type StoreSettings } from '../store/settings.ts'
import { VERSION } from '../runtime/version.ts'
import type { ChangeOptions } from './change.ts'
import type { Context } from './commands.ts'
import type { EvacuateOptions } from './evacuate.ts'
import { EVENT_OPTIONS, type EventOptions } from '../metadata/event-options.ts'
import { EXIT } from '../runtime/exit-status.ts'
import { Failure, failureOf, printFailure } from './failure.ts'
import type { IDENTITY_ACTIONS, IdentityOptions } from './identity.ts'
import type { ImportOptions } from './import.ts'
import type { ListOptions } from './list.ts'
import type { FirewallOptions } from '../firewall/agent/agent.ts'
import { DEFAULT_OPERATOR_SOCKET } from '../operator/paths.ts'
import type { Output } from '../runtime/output.ts'
import type { Environment } from '../runtime/variables.ts'
import { parseWhole } from '../runtime/whole-number.ts'

/**
 * The options of every command, by commander's names: those of STORE_SETTINGS, where `--store` and `--record-keys` are
 * shorter.
 */
type Options = Omit<StoreSettings, 'url' | 'recordKeysFile'> & {
  readonly store?: string
  readonly recordKeys?: string
  readonly environmentFile?: string
  readonly json?: boolean
}

const EXIT_HELP = `
Exit statuses:
  0   done
  1   no such instance; of doctor and status: warnings
  2   refused: an older revision, an address of another instance, a hypervisor that is in use, drained or unknown, or
      a region of imds-api; of doctor and status: failures
  64  wrong usage
  65  a faulty record, too much user-data, or (wait) an interface that can have no link name
  66  a file that cannot be read
  69  the store or the daemon cannot be used
  70  a file of the installation is missing: it is incomplete or was just replaced. Or Node.js is too old
  71  nft rejects the rules
  74  output was lost, because standard output or standard error cannot be written; what the command changes is done
  75  timeout

Variables that are not set are those of imds.service: of /etc/imds/imds.env, or the file in --environment-file, and
of the unit and its drop-ins with the files of their credentials, which root can read. With --store or IMDS_STORE, no
file of secrets or certificates comes from there.`

/** What the commands need of the process. */
export interface Parts {
  readonly output: Output
  /** Its variables, and those of the service that it lacks. */
  readonly env: Environment
  /** Its variables alone. */
  readonly own: Environment
  /** Called with the exit status of a command that has one of its own. */
  readonly ended: (status: number) => void
}

const ID = 'such as srv-x1y2z'
const IDS_FILE = new Option('-f, --file <file>', 'also the ids in this file, one per line; - for standard input')
const DRY_RUN = new Option('--dry-run', 'write nothing: print what would be done to each instance now')
const PATHS = 'a file, a directory, or - for standard input'

const JSON_LINES = `
A file, or standard input, holds one record in JSON or YAML, or JSON lines. A line is a record, or
  {"record": {...}, "userDataBase64": "..."}        null in place of "...": no user-data
In a directory every NAME.json, NAME.yaml or NAME.yml is read, with its user-data in NAME.user-data if that is there.`
const PUT_HELP = `

Many records go over one connection. Refused records are reported on standard error and the others are published. The
exit status is the highest of all, and the last line of the output counts the records.

  jq -c '.[]' records.json | imdsctl put -
  jq -c --rawfile data user-data '{record: ., userDataBase64: ($data | @base64)}' srv-x1y2z.json | imdsctl put -`
const IMPORT_HELP = `

The store then holds what the records say: an instance that comes without user-data has none. Only refused records are printed, and the last
line counts all. In a directory every ID.removed becomes a tombstone, unless the instance has a record.`

const DOCTOR_HELP = `
Exit statuses: 0 if all is well, 1 if there are warnings, 2 if there are failures. Run it as root: other users see less.`

/** Builds the parser, which runs a command. */
export function buildProgram({ output, env, own, ended }: Parts): Command {
  const operatorSocket = (env['IMDS_OPERATOR_SOCKET'] ?? '').trim()
  const OPERATOR = new Option(
    '--operator <address>',
    'the daemon: unix:PATH, its unix socket for operators, or ADDRESS:PORT, its TCP listener, which only reads',
  ).default(`unix:${operatorSocket === '' ? DEFAULT_OPERATOR_SOCKET : operatorSocket}`)
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

  /** Runs a command and sets the exit status. `continues`: the command does its work even if its output is lost. */
  const run = async (continues: boolean, command: (options: Options) => Promise<unknown>) => {
    const options = program.opts<Options>()
    output.use({ json: options.json === true, continues })
    try {
      const result = await command(options)
      if (typeof result === 'number') ended(result)
    } catch (error) {
      const failure = failureOf(error)
      ended(failure.status)
      printFailure(output, failure)
    }
  }
  /** Runs a command that only prints what it finds. It ends when nobody reads its output. */
  const reading = (command: (options: Options) => Promise<unknown>) => run(false, command)
  /** Runs a command that changes something, or whose exit status is a result. */
  const working = (command: (options: Options) => Promise<unknown>) => run(true, command)
  type StoreCommand = (commands: typeof import('./commands.ts'), context: Context) => Promise<void>
  /** A command of commands.ts that needs a store. */
  const ofStore = (command: StoreCommand) => async (options: Options) =>
    command(await import('./commands.ts'), contextOf(options))

  type FleetCommand = (commands: typeof import('./hypervisors.ts'), context: Context) => Promise<void>
  /** A command of hypervisors.ts. */
  const ofFleet = (command: FleetCommand) => async (options: Options) =>
    command(await import('./hypervisors.ts'), contextOf(options))

  type Change = (changes: typeof import('./change.ts'), context: Context) => Promise<number>
  /** A command of change.ts. */
  const ofChange = (command: Change) => async (options: Options) =>
    command(await import('./change.ts'), contextOf(options))

  program
    .command('put')
    .description('publish records, each with its user-data')
    .argument('<path...>', PATHS)
    .option(
      '-u, --user-data <file>',
      'the user-data of the single record, byte for byte; - for standard input. ' +
        'Default: the user-data in the store stays',
    )
    .option('--no-user-data', 'remove the user-data in the store, for each record that comes without user-data')
    .option('--dry-run', 'write nothing: print what a publish of each record would do now')
    .addHelpText('after', JSON_LINES + PUT_HELP)
    .action((paths: string[], { userData, dryRun }: { userData?: string | false; dryRun?: boolean }) =>
      working(async (options) =>
        (await import('./put.ts')).put(contextOf(options), paths, userData, { dryRun: dryRun === true }),
      ),
    )
  program
    .command('validate')
    .description('check records and the user-data that comes with them; needs no store')
    .argument('<path...>', PATHS)
    .addHelpText('after', JSON_LINES)
    .action((paths: string[]) =>
      working(async ({ userDataMaxBytes }) => (await import('./put.ts')).validate(output, paths, userDataMaxBytes)),
    )
  program
    .command('get')
    .description("print an instance's record")
    .argument('<id>', ID)
    .option('--private-keys', 'print the private keys of its identity too', false)
    .action((id: string, { privateKeys }: { privateKeys: boolean }) =>
      reading(ofStore(({ get }, context) => get(context, id, privateKeys))),
    )
  program
    .command('user-data')
    .description("print an instance's user-data, byte for byte; nothing if there is none")
    .argument('<id>', ID)
    .action((id: string) => reading(ofStore(({ userData }, context) => userData(context, id))))
  program
    .command('remove')
    .description('remove instances and leave tombstones, so that every hypervisor stops serving them')
    .argument('[id...]', ID)
    .addOption(IDS_FILE)
    .option(
      '--revision <n>',
      'the revision of the removal of a single instance (default: the last one plus 1)',
      wholeNumber,
    )
    .addOption(DRY_RUN)
    .action((ids: string[], options: ChangeOptions & { revision?: number }) =>
      working(ofChange(({ remove }, context) => remove(context, ids, options))),
    )
  program
    .command('seal')
    .description('seal the user-data of instances with a new revision: no guest gets it, and no put lifts the seal')
    .argument('[id...]', ID)
    .addOption(IDS_FILE)
    .addOption(DRY_RUN)
    .action((ids: string[], options: ChangeOptions) =>
      working(ofChange(({ seal }, context) => seal(context, ids, options))),
    )
  program
    .command('unseal')
    .description('lift the seals on the user-data of instances; nothing else does')
    .argument('[id...]', ID)
    .addOption(IDS_FILE)
    .addOption(DRY_RUN)
    .action((ids: string[], options: ChangeOptions) =>
      working(ofChange(({ unseal }, context) => unseal(context, ids, options))),
    )
  program
    .command('encrypt')
    .description(
      'encrypt instances again with the first key, at the same revision: the last step before another key is removed',
    )
    .argument('[id...]', 'such as srv-x1y2z (default: every instance in the store)')
    .option(
      '--from-plain',
      'encrypt plain records too, although nothing proves that they are authentic; ' +
        'use it once, when you start to use keys',
    )
    .action((ids: string[], { fromPlain = false }: { fromPlain?: boolean }) =>
      working(ofStore(({ encrypt }, context) => encrypt(context, ids, fromPlain))),
    )
  program
    .command('decrypt')
    .description(
      'decrypt every instance, at the same revision, and accept publishers without keys again: ' +
        'to stop the use of record keys',
    )
    .action(() => working(ofStore(({ decrypt }, context) => decrypt(context))))
  program
    .command('list')
    .description('list the instances in the store, or those that pass all filters')
    .option('--hypervisor <name>', 'those whose records name this hypervisor')
    .option('--address <address>', 'those that own this address, or an address of this IPv6 prefix, on any network')
    .option('--account <id>', 'those of this account; reads the records, which takes longer')
    .option('--sealed', 'those whose user-data is sealed')
    .addOption(
      new Option('--removed', 'the instances that were removed in the last 7 days').conflicts([
        'hypervisor',
        'address',
        'account',
        'sealed',
      ]),
    )
    .option('--ids', 'print only ids, one per line, as remove and seal read them')
    .option('--count', 'print only how many there are')
    .action((options: ListOptions) => reading(async (all) => (await import('./list.ts')).list(contextOf(all), options)))
  program
    .command('import')
    .description(
      'publish thousands of records: those of a directory with their tombstones, or JSON lines; it can run again',
    )
    .argument('<path>', PATHS)
    .option('--change-region', 'write the region of the store into each record')
    .addHelpText('after', JSON_LINES + IMPORT_HELP)
    .action((path: string, options: ImportOptions) =>
      working(async (all) => (await import('./import.ts')).importRecords(contextOf(all), path, options)),
    )
  program
    .command('export')
    .description('write all records, user-data and tombstones of the store into a new directory, as import reads them')
    .argument('<directory>', 'it must not exist')
    .action((directory: string) =>
      working(async (all) => (await import('./export.ts')).exportRecords(contextOf(all), directory)),
    )
  program
    .command('init')
    .description('initialise a new region in Redis: daemons become ready although it has no instance yet')
    .action(() => working(ofStore(({ init }, context) => init(context))))
  program
    .command('hypervisors')
    .description(
      'list the hypervisors of the region: version, instances, records, lag, when last seen, since when drained',
    )
    .action(() => reading(ofFleet(({ hypervisors }, context) => hypervisors(context))))
  const HYPERVISOR = 'the name of a hypervisor, such as hv1'
  program
    .command('drain')
    .description('mark a hypervisor that shall get no new instances: put and import warn of records that name it')
    .argument('<name>', HYPERVISOR)
    .action((name: string) => working(ofFleet(({ drain }, context) => drain(context, name))))
  program
    .command('undrain')
    .description('remove that mark')
    .argument('<name>', HYPERVISOR)
    .action((name: string) => working(ofFleet(({ undrain }, context) => undrain(context, name))))
  program
    .command('evacuate')
    .description('move the records of a hypervisor to others; it can run again')
    .argument('<name>', HYPERVISOR)
    .option(
      '--to <names>',
      'the hypervisors that get the records, comma-separated: each record the one with the fewest',
    )
    .option(
      '--begin',
      'begin live migrations: the records name both hypervisors. Run it again without --begin when the guests have moved',
    )
    .addOption(DRY_RUN)
    .action((name: string, options: EvacuateOptions) =>
      working(async (all) => (await import('./evacuate.ts')).evacuate(contextOf(all), name, options)),
    )
  program
    .command('forget')
    .description('delete what the store knows of a hypervisor that is gone; refused while records name it')
    .argument('<name>', HYPERVISOR)
    .action((name: string) => working(ofFleet(({ forget }, context) => forget(context, name))))
  const maintenance = program
    .command('maintenance')
    .description('announce maintenance to the guest of an instance, end that, or list its events')
    .argument('<id>', ID)
  for (const [flags, help] of EVENT_OPTIONS) maintenance.option(flags, help)
  maintenance.action((id: string, options: EventOptions) =>
    working(async (all) => (await import('./maintenance.ts')).maintenance(contextOf(all), id, options)),
  )
  program
    .command('watch')
    .description('print each change as it happens, until interrupted')
    .action(() => reading(ofStore(({ watch }, context) => watch(context))))
  program
    .command('schema')
    .description('print the JSON Schema of a record')
    .action(() =>
      reading(async () => {
        output.print(JSON.stringify((await import('../metadata/json-schema.ts')).jsonSchema(), undefined, 2))
      }),
    )
  program
    .command('wait')
    .description(
      'wait until the daemon of this hypervisor serves an instance: the last step before its guest is started',
    )
    .argument('<id>', ID)
    .option(
      '--revision <n>',
      'the revision to wait for; a later one counts too (default: the one in the store)',
      wholeNumber,
    )
    .option('--timeout <seconds>', 'the longest time to wait', wholeNumber, 30)
    .addOption(OPERATOR)
    .action((id: string, options: { revision?: number; timeout: number; operator: string }) =>
      working(async (all) => {
        const { checkId, lastRevision, wait } = await import('./commands.ts')
        checkId(id)
        await wait(output, id, { ...options, revision: options.revision ?? (await lastRevision(contextOf(all), id)) })
      }),
    )
  program
    .command('explain')
    .description(
      'print what the guest at an address, or of an instance, would get from its daemon and why, the path to it, and its last requests',
    )
    .argument(
      '<address-or-id>',
      'the address of a guest, such as 10.0.0.2, or the id of its instance, such as srv-x1y2z',
    )
    .option('--network <name>', 'the network of the address', 'default')
    .addOption(
      new Option(
        '--hypervisor <name>',
        "ask the daemon of this hypervisor, at the operators' listener that it announces in the store",
      ).conflicts('operator'),
    )
    .addOption(OPERATOR)
    .action((target: string, options: { network: string; operator: string; hypervisor?: string }) =>
      reading(async (all) => {
        const { explain, operatorOf } = await import('./explain.ts')
        const { hypervisor } = options
        const operator = hypervisor === undefined ? options.operator : await operatorOf(contextOf(all), hypervisor)
        const passwordFile = env['IMDS_OPERATOR_PASSWORD_FILE']
        const context = { output, env: own, environmentFile: all.environmentFile, operator, passwordFile }
        await explain(context, target, options.network)
      }),
    )
  type HostCommands = typeof import('./doctor.ts')
  type HostContext = import('./doctor.ts').HostContext
  /** A command of doctor.ts, which looks at this hypervisor. */
  const ofHost = (operator: string, command: (commands: HostCommands, context: HostContext) => Promise<unknown>) =>
    working(async ({ environmentFile }) =>
      command(await import('./doctor.ts'), { output, env: own, environmentFile, operator }),
    )
  program
    .command('doctor')
    .description('check everything on this hypervisor that imds needs, and print the remedy for what is wrong')
    .addHelpText('after', DOCTOR_HELP)
    .addOption(OPERATOR)
    .action(({ operator }: { operator: string }) => ofHost(operator, ({ doctor }, context) => doctor(context)))
  program
    .command('status')
    .description('print the state of the daemon of this hypervisor, its rates during a second, and what is wrong')
    .addHelpText('after', DOCTOR_HELP)
    .addOption(OPERATOR)
    .action(({ operator }: { operator: string }) => ofHost(operator, ({ status }, context) => status(context)))
  program
    .command('log-level')
    .description("print the level of the daemon's log, or change it for some time")
    .argument('[level]', 'fatal, error, warn, info or debug; the configured level ends a change')
    .option('--for <time>', 'how long it lasts, such as 30s, 10m or 2h (default: 10m)')
    .addOption(OPERATOR)
    .action((level: string | undefined, options: { for?: string; operator: string }) =>
      reading(async () => {
        await (await import('./log-level.ts')).logLevel(output, level, options)
      }),
    )
  program
    .command('bugreport')
    .description('write what a bug report needs into a file, without secrets')
    .argument('[file]', 'a file that does not exist yet, or - for standard output (default: a name with the time)')
    .addOption(OPERATOR)
    .action((file: string | undefined, { operator }: { operator: string }) =>
      ofHost(operator, ({ bugreport }, context) => bugreport(context, file)),
    )
  program
    .command('trace')
    .description('print what the guest of an instance has asked for since it last booted, as a time line')
    .argument('<id>', ID)
    .addOption(OPERATOR)
    .action((id: string, { operator }: { operator: string }) =>
      reading(async () => {
        await (await import('./trace.ts')).trace(output, id, operator)
      }),
    )
  program
    .command('identity')
    .description('make the key that signs identity documents and tokens of guests, or publish the keys of an issuer')
    .addArgument(
      new Argument(
        '<action>',
        'init: write a new key and its certificate into the directory. jwks: write the public documents of an issuer ' +
          'into it, which its web server serves',
      ).choices(['init', 'jwks'] satisfies (typeof IDENTITY_ACTIONS)[number][]),
    )
    .argument('<directory>', 'init makes it if it is missing, and never overwrites a file')
    .argument('[path...]', 'jwks: the certificate of each key that signs tokens, or will soon')
    .option('--ec', 'init: a key of the curve P-256, which signs tokens but no documents')
    .addOption(new Option('--issuer <url>', 'jwks: the issuer of the tokens').env('IMDS_IDENTITY_ISSUER'))
    .action((action: (typeof IDENTITY_ACTIONS)[number], directory: string, files: string[], options: IdentityOptions) =>
      working(async () => {
        await (await import('./identity.ts')).identity(output, action, directory, files, options)
      }),
    )
  program
    .command('reports')
    .description('print what the guest of an instance has reported: its claims, which nothing verifies')
    .argument('<id>', ID)
    .addOption(OPERATOR)
    .action((id: string, { operator }: { operator: string }) =>
      reading(async () => {
        await (await import('./reports.ts')).reports(output, id, operator)
      }),
    )
  program
    .command('firewall')
    .description("print the firewall rules for the daemon's view, or keep them in the kernel")
    .option('--apply', 'apply them in one transaction; without it, only print them')
    .option('--watch', 'with --apply: follow the view and undo changes by others, until interrupted; the rules stay')
    .option('--remove', 'remove the rules')
    .addOption(OPERATOR)
    .action((options: Omit<FirewallOptions, 'own' | 'journalStream'>) =>
      working(async () => {
        const { IMDS_LISTEN, IMDS_OPERATOR_LISTEN, IMDS_LINK, JOURNAL_STREAM } = env
        const { firewall } = await import('../firewall/agent/agent.ts')
        const outcome = await firewall(output, {
          ...options,
          own: { IMDS_LISTEN, IMDS_OPERATOR_LISTEN, IMDS_LINK },
          journalStream: JOURNAL_STREAM,
        })
        if (!outcome.ok) throw new Failure(outcome.status, outcome.message, outcome.details)
      }),
    )
  return program

  function contextOf({ store, recordKeys, ...settings }: Options): Context {
    if (store === undefined) throw new Failure(EXIT.usage, 'no store: give --store or set IMDS_STORE')
    return { store: { url: store, recordKeysFile: recordKeys, ...settings }, output }
  }
}

function wholeNumber(text: string): number {
  const value = parseWhole(text.trim(), 1, Number.MAX_SAFE_INTEGER)
  if (value === undefined) throw new InvalidArgumentError('not a whole number of at least 1, in decimal digits')
  return value
}
