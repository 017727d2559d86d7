/**
 * The entry of imds-api: reads arguments and environment, runs a command, handles signals, and sets the exit status.
 *
 * Exit status: 0 after SIGTERM, SIGINT or SIGHUP, or when a command has succeeded; 1 if it failed or the service cannot go on;
 * of sysexits.h 64 (EX_USAGE) for wrong arguments, 66 (EX_NOINPUT) if the file of --environment-file cannot be read,
 * 69 (EX_UNAVAILABLE) if a command cannot use the store, or --check --connect the database, 74 (EX_IOERR) if the output
 * of a command was lost, and 78 (EX_CONFIG) for a bad configuration or region file.
 */
import { STOP_SIGNALS, stopSignal } from '../runtime/signals.ts' // first: it catches SIGUSR1
import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { buildLog, standardOutput } from '../runtime/log.ts'
import { readTextFile } from '../runtime/text-file.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { StartFailure } from '../runtime/listen.ts'
import { isJournal } from '../runtime/log-output.ts'
import { Output } from '../runtime/output.ts'
import { IMDS_API_SERVICE, readServiceEnvironment, type ServiceEnvironment } from '../runtime/service-environment.ts'
import { superviseBy } from '../runtime/systemd.ts'
import type { VariableFault } from '../runtime/variables.ts'
import { printProbe, probeStore, storeOfPublisher } from '../store/probe.ts'
import { buildProgram } from './commands/arguments.ts'
import { serviceFileFaults } from './service/service-files.ts'
import { startApi, type Api } from './service/service.ts'
import { openForCommand, withDatabase, type CommandParts } from './commands/commands.ts'
import { parseApiConfig, regionFault, type ApiConfig } from './service/config.ts'
import { compareMigrations } from './database/migrate.ts'
import { inTransaction, rolledBack } from './database/transaction.ts'
import { drain, evacuate, listHypervisors, maintenance } from './commands/fleet.ts'
import { reconcile } from './commands/reconcile.ts'
import { applyRegion } from './region/apply.ts'
import { parseRegion } from './region/parse.ts'
import type { Region } from './region/removed.ts'
import { loadSecrets, type RegionSecrets } from './region/secrets.ts'

const priority = isJournal(process.env['JOURNAL_STREAM'], 2) ? '<3>' : '' // of a message on standard error
const output = new Output(`${priority}imds-api`, process.stdout, process.stderr, (ended) => process.exit(ended))
/** The exit status of a command; undefined while imds-api serves. */
let status: number | undefined

const program = buildProgram(output, {
  serve,
  check: command(check),
  apply: command(apply),
  reconcile: command((parts, options) => reconcile(parts, options, stopSignal())),
  doctor: async () => {
    const { doctor } = await import('./commands/doctor.ts')
    status = await doctor({ parsed: parseVariables(true), fileFaults: fileFaults() }, output)
  },
  hypervisors: command(listHypervisors),
  drain: command(drain),
  evacuate: command(evacuate),
  maintenance: command(maintenance),
})

try {
  await program.parseAsync()
  if (status !== undefined) process.exitCode = await output.finish(status)
} catch (error) {
  process.exit(await output.finish(report(error)))
}

/** Runs a command, and keeps its exit status. */
function command<Args extends readonly unknown[]>(
  run: (parts: CommandParts, ...args: Args) => Promise<number>,
): (...args: Args) => Promise<void> {
  return async (...args) => {
    status = await run({ config: readConfig().config, output }, ...args)
  }
}

/** Prints why a command failed, and returns its exit status. */
function report(error: unknown): number {
  const { message, code, exitCode } = error as Error & { code?: string; exitCode?: number }
  if (code?.startsWith('commander.') === true) return exitCode === 0 ? EXIT.done : EXIT.usage // commander has printed it
  for (const line of message.split('\n')) output.warn(line)
  return error instanceof CommandFailure ? error.status : 1
}

/**
 * The configuration, and the unknown variables beside it. A command reads the variables of the service; the service
 * itself has them, unless --environment-file names a file.
 */
function readConfig(isCommand = true): { readonly config: ApiConfig; readonly unknown: readonly string[] } {
  const parsed = parseVariables(isCommand)
  if (parsed.ok) return { config: parsed.value, unknown: parsed.unknown }
  throw new CommandFailure(
    EXIT.badConfig,
    parsed.faults.map(({ variable, message }) => `${variable} ${message}`).join('\n'),
  )
}

function parseVariables(isCommand: boolean): ReturnType<typeof parseApiConfig> {
  const { environmentFile } = program.opts<{ environmentFile?: string }>()
  return parseApiConfig(
    isCommand || environmentFile !== undefined ? environmentOf(environmentFile).variables : process.env,
  )
}

function environmentOf(environmentFile: string | undefined): ServiceEnvironment {
  const read = readServiceEnvironment(IMDS_API_SERVICE, environmentFile, process.env, false)
  if (!read.ok) throw new CommandFailure(EXIT.noInput, read.faults.join())
  return read.value
}

/** What is wrong with the files of the service, for its user if this process is root. */
function fileFaults(): readonly VariableFault[] {
  const { environmentFile } = program.opts<{ environmentFile?: string }>()
  const service = environmentOf(environmentFile)
  return serviceFileFaults(service, process.getuid?.() === 0 ? service.unit?.user : undefined, Date.now())
}

async function serve(): Promise<void> {
  const { config, unknown } = readConfig(false)
  const log = buildLog(config.logLevel, standardOutput(process.env['JOURNAL_STREAM']))
  if (unknown.length > 0) log.warn({ code: 'variables-unknown', variables: unknown }, 'unknown variables are ignored')
  process.on('uncaughtException', (error) => {
    log.fatal({ code: 'unexpected-error', err: error }, 'unexpected error')
    process.exit(1)
  })
  let running: Api | undefined = undefined
  let stopping = false
  const stop = async () => {
    if (stopping) return
    stopping = true
    await running?.stop() // during the start: PostgreSQL rolls back what is not committed
    log.info('stopped')
    process.exit(0)
  }
  for (const signal of STOP_SIGNALS) process.on(signal, () => void stop())
  running = await startApi(config, log).catch((error: unknown) => {
    const cause = error instanceof StartFailure ? { reason: error.message } : { err: error }
    log.fatal({ code: 'start-failed', ...cause }, 'imds-api cannot start')
    process.exit(1)
  })
  superviseBy(process.env, log)
}

async function check({ config }: CommandParts, connects: boolean): Promise<number> {
  const faults = fileFaults()
  for (const { variable, message } of faults) output.warn(`${variable} ${message}`)
  const ofFiles = faults.length > 0 ? EXIT.badConfig : EXIT.done
  const ofStore = connects ? printProbe(output, await probeStore(storeOfPublisher(config.store)), '') : EXIT.done
  const ofTables = await checkTables(config).catch((error: unknown) => {
    const found = report(error)
    return connects && error instanceof StartFailure ? EXIT.unavailable : found
  })
  return Math.max(ofFiles, ofStore, ofTables)
}

/** Prints how the tables differ from those of this version, and returns the exit status. */
async function checkTables(config: ApiConfig): Promise<number> {
  const database = await openForCommand({ config, output })
  try {
    const { missing, unknown, unsupported } = await compareMigrations(database.db)
    for (const name of missing) output.print(`missing: ${name} (the next start applies it)`)
    for (const name of unknown)
      output.print(
        `unknown: ${name} (of a later version${unsupported.includes(name) ? '' : ', with which this one works'})`,
      )
    if (missing.length + unknown.length > 0) return 1
    output.print('the tables are those of this version')
    return EXIT.done
  } finally {
    await database.close()
  }
}

async function apply(parts: CommandParts, path: string, isDryRun: boolean): Promise<number> {
  const { region, secrets } = await readRegion(path)
  const fault = regionFault(parts.config, region.file.name, `${path} says`)
  if (fault !== undefined) throw new CommandFailure(EXIT.badConfig, fault)
  return withDatabase(parts, async ({ db }) => {
    const run = isDryRun ? rolledBack : inTransaction
    const difference = await run(db, (tx) => applyRegion(tx, region, secrets))
    output.print(difference.length === 0 ? 'no difference' : difference.join('\n'))
    return EXIT.done
  })
}

async function readRegion(path: string): Promise<{ readonly region: Region; readonly secrets: RegionSecrets }> {
  const region = await parseRegion(readFileSync(path))
  if (!region.ok) throw regionFailure(path, region.faults)
  const secrets = loadSecrets(region.value.file, (name) => readTextFile(resolve(dirname(path), name)))
  if (!secrets.ok) throw regionFailure(path, secrets.faults)
  return { region: region.value, secrets: secrets.value }
}

function regionFailure(path: string, faults: readonly string[]): CommandFailure {
  return new CommandFailure(EXIT.badConfig, faults.map((fault) => `${path}: ${fault}`).join('\n'))
}
