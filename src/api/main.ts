/**
 * The entry of imds-api: reads arguments and environment, runs a command, handles signals, and sets the exit status.
 *
 * Exit status: 0 after SIGTERM or SIGINT, or when a command has succeeded; 1 if it failed or the service cannot go on;
 * of sysexits.h 64 (EX_USAGE) for wrong arguments, 65 (EX_DATAERR) for a backup that cannot be restored, 69
 * (EX_UNAVAILABLE) if a command cannot use the store, or --check --connect the database, 74 (EX_IOERR) if the output of
 * a command was lost, and 78 (EX_CONFIG) for a bad configuration or region file.
 */
import { Command } from 'commander'
import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { buildLog, standardOutput } from '../runtime/log.ts'
import { becomeOwnerOf } from '../runtime/become-owner.ts'
import { EXIT } from '../runtime/exit-status.ts'
import { Failure } from './failure.ts'
import { StartFailure } from '../runtime/listen.ts'
import { isJournal } from '../runtime/log-output.ts'
import { Output } from '../runtime/output.ts'
import { IMDS_API_SERVICE, readServiceEnvironment } from '../runtime/service-environment.ts'
import { superviseBy } from '../runtime/systemd.ts'
import { readUnit } from '../runtime/unit-file.ts'
import { probeStore, storeOfPublisher } from '../store/probe.ts'
import type { StoreSettings } from '../store/settings.ts'
import { describeVariables } from '../runtime/variables.ts'
import { VERSION } from '../runtime/version.ts'
import { startApi } from './service.ts'
import { API_VARIABLES, parseApiConfig, type ApiConfig } from './config.ts'
import { enqueueAll } from './changes/servers.ts'
import { compareMigrations, migrate } from './database/migrate.ts'
import { databaseExists, openDatabase, type Database, type DatabaseSettings } from './database/open.ts'
import { inTransaction, rolledBack } from './database/transaction.ts'
import { advanceDatabase, backup, noDatabase, restore } from './recovery.ts'
import { applyRegion } from './region/apply.ts'
import { parseRegion } from './region/parse.ts'
import type { RegionFile } from './region/schema.ts'
import { loadSecrets, type RegionSecrets } from './region/secrets.ts'

const priority = isJournal(process.env['JOURNAL_STREAM'], 2) ? '<3>' : '' // of a message on standard error
const output = new Output(`${priority}imds-api`, process.stdout, process.stderr, (ended) => process.exit(ended))
/** The exit status of a command; undefined while imds-api serves. */
let status: number | undefined

const program = new Command('imds-api')
  .description('The API of a region. Without a command: serves it until SIGTERM or SIGINT.')
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
The secret of an account's first API client comes from the region file (secret_file). Clients that are created later have none: POST
/1.0/api_clients/ID/reset_secret returns the first one, and each new one.

Environment variables (docs/configuration.md describes them):

${describeVariables(API_VARIABLES)}`,
  )
  .showHelpAfterError('(imds-api --help lists the commands)')
  .exitOverride()
  .hook('preAction', (_program, command) => {
    output.use({ json: false, continues: true })
    const { check, connect } = program.opts<{ check?: boolean; connect?: boolean }>()
    if (connect === true && (check !== true || command !== program))
      program.error('error: --connect is for --check: the service always connects')
  })
  .action(async (options: { check?: boolean; connect?: boolean }) => {
    await (options.check === true ? check(options.connect === true) : serve())
  })
program
  .command('apply')
  .argument('<file>', 'the region file')
  .description('bring the database to what a region file says')
  .option('--dry-run', 'print the difference and change nothing')
  .option('--prune', 'delete what the file does not have')
  .action(async (file: string, options: { dryRun?: boolean; prune?: boolean }) => {
    await apply(file, options.dryRun === true, options.prune === true)
  })
program
  .command('republish')
  .description('publish every server again: for a store that was lost or restored')
  .action(republish)
program
  .command('backup')
  .argument('<file>', '- is standard output')
  .description('write all rows of the database into a file')
  .action(async (file: string) => {
    status = await backup(recoveryParts(), file, environmentFileOption())
  })
program
  .command('restore')
  .argument('<file>', '- is standard input')
  .description('read a backup into an empty database, and move it past the store as advance does')
  .action(async (file: string) => {
    status = await restore(recoveryParts(), file)
  })
program
  .command('advance')
  .description('move ids, revisions and addresses past those of the store: after a restore of an older database')
  .action(async () => {
    status = await advanceDatabase(recoveryParts())
  })

try {
  await program.parseAsync()
  if (status !== undefined) process.exitCode = await output.finish(status)
} catch (error) {
  process.exit(await output.finish(report(error)))
}

/** Prints why a command failed, and returns its exit status. */
function report(error: unknown): number {
  const { message, code, exitCode } = error as Error & { code?: string; exitCode?: number }
  if (code?.startsWith('commander.') === true) return exitCode === 0 ? EXIT.done : EXIT.usage // commander has printed it
  for (const line of message.split('\n')) output.warn(line)
  return error instanceof Failure ? error.status : 1
}

/**
 * The configuration, and the unknown variables beside it. A command reads the variables of the service; the service
 * itself has them, unless --environment-file names a file.
 */
function readConfig(isCommand = true): { readonly config: ApiConfig; readonly unknown: readonly string[] } {
  const { environmentFile } = program.opts<{ environmentFile?: string }>()
  const parsed = parseApiConfig(isCommand || environmentFile !== undefined ? variablesOf(environmentFile) : process.env)
  if (parsed.ok) return { config: parsed.value, unknown: parsed.unknown }
  throw new Failure(EXIT.badConfig, parsed.faults.map(({ variable, message }) => `${variable} ${message}`).join('\n'))
}

function variablesOf(environmentFile: string | undefined): Readonly<Record<string, string | undefined>> {
  const read = readServiceEnvironment(
    IMDS_API_SERVICE,
    readUnit(IMDS_API_SERVICE.name),
    environmentFile,
    process.env,
    process.env['IMDS_STORE'] !== undefined,
  )
  if (!read.ok) throw new Failure(EXIT.noInput, read.faults.join())
  return read.value.variables
}

async function serve(): Promise<void> {
  const { config, unknown } = readConfig(false)
  const log = buildLog(config.logLevel, standardOutput(process.env['JOURNAL_STREAM']))
  if (unknown.length > 0) log.warn({ variables: unknown }, 'unknown variables are ignored')
  process.on('uncaughtException', (error) => {
    log.fatal({ err: error }, 'unexpected error')
    process.exit(1)
  })
  const api = await startApi(config, log).catch((error: unknown) => {
    log.fatal(error instanceof StartFailure ? { reason: error.message } : { err: error }, 'imds-api cannot start')
    process.exit(1)
  })
  let stopping = false as boolean // TypeScript does not see that `end` sets it
  const end = async (status: number) => {
    if (stopping) return
    stopping = true
    await api.stop()
    log.info('stopped')
    process.exit(status)
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const)
    process.on(signal, () => {
      void end(0)
    })
  process.on('SIGHUP', () => {
    api.reopenAudit()
  })
  superviseBy(process.env, log)
  void api.failed.then((reason) => {
    if (stopping) return
    log.fatal({ reason }, 'imds-api cannot continue')
    process.exit(1)
  })
}

function recoveryParts(): Parameters<typeof restore>[0] {
  return { config: readConfig().config, output, open: openForCommand }
}

/** The option for a child process that runs a command with the same variables. */
function environmentFileOption(): readonly string[] {
  const { environmentFile } = program.opts<{ environmentFile?: string }>()
  return environmentFile === undefined ? [] : ['--environment-file', environmentFile]
}

/**
 * Opens the database for a command. Root becomes the owner of its directory, so whatever only root may read must be
 * read before.
 */
async function openForCommand(settings: DatabaseSettings): Promise<Database> {
  if (settings.kind === 'embedded') becomeOwnerOf(settings.stateDirectory)
  return openDatabase(settings, true, (error) => {
    output.warn(error.message)
  })
}

async function check(connects: boolean): Promise<void> {
  const { config } = readConfig()
  const ofStore = connects ? await checkStore(config.store) : EXIT.done
  const ofTables = await checkTables(config.database).catch((error: unknown) => {
    const found = report(error)
    return connects && error instanceof StartFailure ? EXIT.unavailable : found
  })
  status = Math.max(ofStore, ofTables)
}

/** Prints what it finds in the store, and returns the exit status. */
async function checkStore(settings: StoreSettings): Promise<number> {
  const { findings, warnings, problems } = await probeStore(storeOfPublisher(settings))
  for (const finding of [...findings, ...warnings]) output.print(`the store: ${finding}`)
  for (const problem of problems) output.warn(`the store cannot be used: ${problem}`)
  return problems.length > 0 ? EXIT.unavailable : EXIT.done
}

/** Prints how the tables differ from those of this version, and returns the exit status. */
async function checkTables(settings: DatabaseSettings): Promise<number> {
  if (!databaseExists(settings)) throw noDatabase()
  const database = await openForCommand(settings)
  const { missing, unknown } = await compareMigrations(database.db)
  await database.close()
  for (const name of missing) output.print(`missing: ${name} (the next start applies it)`)
  for (const name of unknown) output.print(`unknown: ${name} (of a later version)`)
  if (missing.length + unknown.length > 0) return 1
  output.print('the tables are those of this version')
  return EXIT.done
}

async function apply(path: string, isDryRun: boolean, prune: boolean): Promise<void> {
  const { config } = readConfig()
  const { file, secrets } = await readRegion(path)
  if (config.store.region !== undefined && config.store.region !== file.name)
    throw new Failure(
      EXIT.badConfig,
      `IMDS_REGION is ${config.store.region}, and ${path} says ${file.name}: correct one of them`,
    )
  const database = await openForCommand(config.database)
  try {
    await migrate(database.db)
    const run = isDryRun ? rolledBack : inTransaction
    const difference = await run(database.db, (tx) => applyRegion(tx, file, prune, secrets))
    output.print(difference.length === 0 ? 'no difference' : difference.join('\n'))
    status = 0
  } finally {
    await database.close()
  }
}

/** A region file with its secrets. */
async function readRegion(path: string): Promise<{ readonly file: RegionFile; readonly secrets: RegionSecrets }> {
  const file = await parseRegion(readFileSync(path, 'utf8'))
  if (!file.ok) throw regionFailure(path, file.faults)
  const secrets = loadSecrets(file.value, (name) => readFileSync(resolve(dirname(path), name), 'utf8'))
  if (!secrets.ok) throw regionFailure(path, secrets.faults)
  return { file: file.value, secrets: secrets.value }
}

function regionFailure(path: string, faults: readonly string[]): Failure {
  return new Failure(EXIT.badConfig, faults.map((fault) => `${path}: ${fault}`).join('\n'))
}

async function republish(): Promise<void> {
  const database = await openForCommand(readConfig().config.database)
  try {
    const count = await inTransaction(database.db, enqueueAll)
    output.print(`${String(count)} servers will be published again`)
    status = 0
  } finally {
    await database.close()
  }
}
