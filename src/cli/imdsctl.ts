#!/usr/bin/env node
/**
 * The entry of imdsctl: its arguments, and how a command's end becomes the program's. What a command does is in a file of its own, which
 * is loaded when the command runs: a start costs what its command needs, and no more. No `await` at the top level: the bundler would put
 * what this file shares with the commands into files of their own, a millisecond each.
 */
import { readFileSync } from 'node:fs'
import { parseEnv } from 'node:util'
import { Command, InvalidArgumentError, Option } from 'commander'
import { STORE_SETTINGS, type StoreSettings } from '../store/settings.ts'
import { VERSION } from '../version.ts'
import type { Context } from './commands.ts'
import { EXIT, Failure } from '../runtime/failure.ts'
import type { FirewallOptions } from '../firewall/agent/agent.ts'
import { missingFile } from '../runtime/missing-file.ts'

/** The options of every command, by commander's names: those of STORE_SETTINGS, where `--store` and `--record-keys` are shorter. */
type Options = Omit<StoreSettings, 'url' | 'recordKeysFile'> & { readonly store?: string, readonly recordKeys?: string, readonly json?: boolean }

const EXIT_HELP = `
Exit statuses:
  0   done
  1   no such instance
  2   refused by the store: an older revision, or an address of another instance
  64  wrong usage
  65  a faulty record, or user-data that is too large
  66  a file that cannot be read
  69  the store, or the daemon, cannot be used
  70  a file of the installation is missing: it is incomplete, or was replaced meanwhile
  71  nft does not take the rules
  75  the time to wait is over

Variables that are not set are taken from /etc/imds/imds.env, where that can be read.`

/** What the daemon of this host is configured with: for variables that the environment has not. */
const DAEMON_ENVIRONMENT = '/etc/imds/imds.env'
readDaemonEnvironment()
// Whatever IMDS_OPERATOR_LISTEN says, the daemon answers on loopback too, at the same port.
const operatorPort = /:(\d+)$/.exec(process.env['IMDS_OPERATOR_LISTEN'] ?? '')?.[1] ?? '9169'
const OPERATOR = new Option('--operator <address>', 'the daemon\'s operators\' listener').default(`127.0.0.1:${operatorPort}`)
const ID = 'such as srv-x1y2z'
const PATHS = 'a file, a directory, or - for standard input'

const JSON_LINES = `
A file, or standard input, holds one record in JSON or YAML, or JSON lines. A line is a record, or
  {"record": {...}, "userDataBase64": "..."}        null in place of "...": no user-data
In a directory every NAME.json, NAME.yaml or NAME.yml is read, with its user-data in NAME.user-data if that is there.`
const PUT_HELP = `

Many records go over one connection. Each that is refused is named on standard error, the others are published. The exit status is the
highest of all, and the last line of the output counts the records.

  jq -c '.[]' records.json | imdsctl put -
  jq -c --rawfile data user-data '{record: ., userDataBase64: ($data | @base64)}' srv-x1y2z.json | imdsctl put -`

process.stdout.on('error', () => { process.exit() }) // `imdsctl list | head`: the reader has enough
buildProgram().parseAsync().catch((error: unknown) => {
  const { code, exitCode } = error as { code?: string, exitCode?: number }
  if (code?.startsWith('commander.') !== true) throw error
  process.exitCode = exitCode === 0 ? EXIT.done : EXIT.usage
})

function buildProgram(): Command {
  const program = new Command('imdsctl')
    .description('publishes, shows and removes the instances that imds answers for')
    .version(VERSION, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print this text, or that of a command')
    .showHelpAfterError('(imdsctl --help tells more)')
    .addHelpText('after', EXIT_HELP)
    .exitOverride()
  for (const { flags, help, variable } of Object.values(STORE_SETTINGS)) {
    const option = new Option(flags, help).env(variable)
    program.addOption(flags.endsWith('<n>') ? option.argParser(wholeNumber) : option)
  }
  program.option('--json', 'print JSON')

  /** Runs a command and makes its end the program's. */
  const ending = async (command: (options: Options) => Promise<void>) => {
    const options = program.opts<Options>()
    try {
      await command(options)
    } catch (error) {
      const failure = failureOf(error)
      process.exitCode = failure.status
      if (options.json === true) console.log(JSON.stringify({ error: failure.message, ...failure.details }))
      else console.error(`imdsctl: ${failure.message}`)
    }
  }
  /** Runs a command of commands.ts that needs a store. */
  const withStore = (command: (commands: typeof import('./commands.ts'), context: Context) => Promise<void>) => ending(async (options) => {
    await command(await import('./commands.ts'), contextOf(options))
  })

  program.command('put')
    .description('publish records, each with its user-data')
    .argument('<path...>', PATHS)
    .option('-u, --user-data <file>', 'the user-data of the one record, byte for byte; - for standard input. Without it, the user-data that is there stays')
    .option('--no-user-data', 'publish without user-data where none comes with the record: what was there is gone')
    .option('--dry-run', 'write nothing: print what would become of each record now, compared with the store alone')
    .addHelpText('after', JSON_LINES + PUT_HELP)
    .action((paths: string[], { userData, dryRun }: { userData?: string | false, dryRun?: boolean }) =>
      ending(async (options) => (await import('./put.ts')).put(contextOf(options), paths, userData, { dryRun: dryRun === true })))
  program.command('validate')
    .description('check records, and their user-data where it comes with them; needs no store')
    .argument('<path...>', PATHS)
    .addHelpText('after', JSON_LINES)
    .action((paths: string[]) => ending(async ({ json = false, userDataMaxBytes }) => (await import('./put.ts')).validate(json, paths, userDataMaxBytes)))
  program.command('get')
    .description('print an instance\'s record')
    .argument('<id>', ID)
    .action((id: string) => withStore(({ get }, context) => get(context, id)))
  program.command('user-data')
    .description('print an instance\'s user-data, byte for byte; nothing where there is none')
    .argument('<id>', ID)
    .action((id: string) => withStore(({ userData }, context) => userData(context, id)))
  program.command('remove')
    .description('remove an instance and leave a tombstone, so that every host forgets it')
    .argument('<id>', ID)
    .option('--revision <n>', 'the revision of the removal (default: the last one plus 1)', wholeNumber)
    .action((id: string, { revision }: { revision?: number }) => withStore(({ remove }, context) => remove(context, id, revision)))
  program.command('seal')
    .description('seal an instance\'s user-data: from its next revision on no guest gets it, and no put changes that')
    .argument('<id>', ID)
    .action((id: string) => withStore(({ seal }, context) => seal(context, id)))
  program.command('unseal')
    .description('lift the seal of an instance\'s user-data: nothing else does')
    .argument('<id>', ID)
    .action((id: string) => withStore(({ unseal }, context) => unseal(context, id)))
  program.command('encrypt')
    .description('encrypt with the first key what is encrypted with another, at the same revision: the last step before a key is retired')
    .argument('[id...]', 'such as srv-x1y2z (default: every instance of the store)')
    .option('--from-plain', 'what is not encrypted too: whatever stands there is taken for true, once, when keys come into use')
    .action((ids: string[], { fromPlain = false }: { fromPlain?: boolean }) => withStore(({ encrypt }, context) => encrypt(context, ids, fromPlain)))
  program.command('decrypt')
    .description('with record keys: decrypt every instance, at the same revision, and take publishers without keys again. For the end of record keys')
    .action(() => withStore(({ decrypt }, context) => decrypt(context)))
  program.command('list')
    .description('list the instances of the store')
    .action(() => withStore(({ list }, context) => list(context)))
  program.command('init')
    .description('make a new region in Redis: daemons are ready with it although it has no instance yet')
    .action(() => withStore(({ init }, context) => init(context)))
  program.command('hypervisors')
    .description('list the hypervisors whose daemons ever connected to the store, with version, instances and when each was last seen')
    .action(() => withStore(({ hypervisors }, context) => hypervisors(context)))
  program.command('watch')
    .description('print each change as it comes, until interrupted')
    .action(() => withStore(({ watch }, context) => watch(context)))
  program.command('schema')
    .description('print the JSON Schema of a record')
    .action(() => ending(async () => { console.log(JSON.stringify((await import('../metadata/json-schema.ts')).jsonSchema(), null, 2)) }))
  program.command('wait')
    .description('wait until the daemon of this hypervisor answers for an instance: the last step before its guest is started')
    .argument('<id>', ID)
    .option('--revision <n>', 'the revision that was published, or a later one (default: the store\'s)', wholeNumber)
    .option('--timeout <seconds>', 'how long to wait', wholeNumber, 30)
    .addOption(OPERATOR)
    .action((id: string, options: { revision?: number, timeout: number, operator: string }) => ending(async (all) => {
      const { checkId, lastRevision, wait } = await import('./commands.ts')
      checkId(id)
      await wait(all.json, id, { ...options, revision: options.revision ?? await lastRevision(contextOf(all), id) })
    }))
  program.command('explain')
    .description('what the daemon of this hypervisor would answer a guest at an address, and why')
    .argument('<address>', 'a guest\'s, such as 10.0.0.2')
    .option('--network <name>', 'the network of its interface', 'default')
    .addOption(OPERATOR)
    .action((address: string, options: { network: string, operator: string }) =>
      ending(async ({ json = false }) => (await import('./commands.ts')).explain(json, address, options)))
  program.command('firewall')
    .description('the host\'s firewall rules for the daemon\'s view: print them, or keep them in the kernel')
    .option('--apply', 'apply them in one transaction; without it, only print them')
    .option('--watch', 'with --apply: follow the view, and put back what somebody changes, until interrupted; the rules stay')
    .option('--remove', 'take the rules away')
    .addOption(OPERATOR)
    .action((options: FirewallOptions) => ending(async ({ json = false }) => (await import('../firewall/agent/agent.ts')).firewall(json, options)))
  return program
}

function contextOf({ store, json = false, recordKeys, ...settings }: Options): Context {
  if (store === undefined) throw new Failure(EXIT.usage, 'which store? Give --store or set IMDS_STORE')
  return { store: { url: store, recordKeysFile: recordKeys, ...settings }, json }
}

/** On a hypervisor the store, the region and the operators' port are those of its daemon. A file that is not there, or not for us, says nothing. */
function readDaemonEnvironment(): void {
  let text: string
  try {
    text = readFileSync(DAEMON_ENVIRONMENT, 'utf8')
  } catch {
    return
  }
  for (const [name, value] of Object.entries(parseEnv(text))) if (name.startsWith('IMDS_')) process.env[name] ??= value
}

function failureOf(error: unknown): Failure {
  if (error instanceof Failure) return error
  const path = missingFile(error)
  if (path !== undefined) {
    return new Failure(EXIT.software, `cannot load ${path}, which belongs to its installation: was imds just upgraded? Run the command again, or install imds again`)
  }
  return new Failure(EXIT.unavailable, error instanceof Error ? error.message : String(error))
}

function wholeNumber(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 1) throw new InvalidArgumentError('not a whole number of at least 1')
  return value
}
