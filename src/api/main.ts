#!/usr/bin/env node
/**
 * The entry of imds-api: reads arguments and environment, runs a command, handles signals, and sets the exit status.
 *
 * Exit status: 0 after SIGTERM or SIGINT, or when a command has succeeded; 1 if it failed or the service cannot go on; 64 (EX_USAGE of sysexits.h) for wrong
 * arguments and 78 (EX_CONFIG) for a bad configuration or region file.
 */
import { Command } from 'commander'
import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { buildLog, standardOutput } from '../log.ts'
import { StartFailure } from '../runtime/listen.ts'
import { superviseBy } from '../runtime/systemd.ts'
import { VERSION } from '../version.ts'
import { startApi } from './api.ts'
import { API_SETTINGS, parseApiConfig, type ApiConfig } from './config.ts'
import { enqueueAll } from './database/finish-server.ts'
import { compareMigrations, migrate } from './database/migrate.ts'
import { databaseExists, openDatabase } from './database/open.ts'
import { inTransaction } from './database/transaction.ts'
import { refuse } from './refusal.ts'
import { applyRegion } from './region/apply.ts'
import { parseRegion, type RegionFile } from './region/schema.ts'
import { loadSecrets, type RegionSecrets } from './region/secrets.ts'

const EX_USAGE = 64
const EX_CONFIG = 78

const program = new Command('imds-api')
  .description('The REST interface of a region. Without a command: serves it until SIGTERM or SIGINT.')
  .version(VERSION, '-V, --version', 'print the version')
  .helpOption('-h, --help', 'print this text')
  .option('--check', 'compare the tables of the database with this version, and change nothing')
  .addHelpText('after', `
The secret of an account's first API client comes from the region file (secret_file). Clients that are created later have none: POST
/1.0/api_clients/ID/reset_secret returns the first one, and each new one.

Environment variables, with their defaults (docs/configuration.md describes them; IMDS_STORE and its companions are those of imdsctl):
${Object.entries(API_SETTINGS).map(([name, value]) => `  ${name.padEnd(30)}${value ?? ''}`.trimEnd()).join('\n')}`)
  .showHelpAfterError('(imds-api --help lists the commands)')
  .exitOverride(({ exitCode }) => { process.exit(exitCode === 0 ? 0 : EX_USAGE) })
  .action(async (options: { check?: boolean }) => { await (options.check === true ? check() : serve()) })
program.command('apply').argument('<file>', 'the region file').description('bring the database to what a region file says')
  .option('--dry-run', 'print the difference and change nothing').option('--prune', 'delete what the file does not have')
  .action(async (file: string, options: { dryRun?: boolean, prune?: boolean }) => { await apply(file, options.dryRun === true, options.prune === true) })
program.command('republish').description('publish every server again: for a store that was lost or restored').action(republish)

try {
  await program.parseAsync()
} catch (error) {
  fail((error as Error).message, 1)
}

function fail(message: string, status: number): never {
  console.error(`imds-api: ${message}`)
  process.exit(status)
}

/** The configuration, and the unknown variables beside it. Ends the process where it is bad. */
function readConfig(): { readonly config: ApiConfig, readonly unknown: readonly string[] } {
  const parsed = parseApiConfig(process.env)
  if (parsed.ok) return { config: parsed.value, unknown: parsed.unknown }
  for (const { variable, message } of parsed.faults) console.error(`imds-api: ${variable} ${message}`)
  process.exit(EX_CONFIG)
}

async function serve(): Promise<void> {
  const { config, unknown } = readConfig()
  const log = buildLog(config.logLevel, standardOutput())
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
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => { void end(0) })
  process.on('SIGHUP', () => { api.reopenAudit() })
  superviseBy(process.env, log)
  void api.failed.then((reason) => {
    if (stopping) return
    log.fatal({ reason }, 'imds-api cannot continue')
    process.exit(1)
  })
}

async function check(): Promise<void> {
  const { config: { database: settings } } = readConfig()
  if (!databaseExists(settings)) fail('there is no embedded database yet in IMDS_API_STATE_DIR: imds-api apply FILE creates it', 1)
  const database = await openDatabase(settings, true, (error) => { console.error(`imds-api: ${error.message}`) })
  const { missing, unknown } = await compareMigrations(database.tables)
  await database.close()
  for (const name of missing) console.log(`missing: ${name} (the next start applies it)`)
  for (const name of unknown) console.log(`unknown: ${name} (of a later version)`)
  if (missing.length + unknown.length > 0) process.exitCode = 1
  else console.log('the tables are those of this version')
}

async function apply(path: string, isDryRun: boolean, prune: boolean): Promise<void> {
  const { config } = readConfig()
  const { file, secrets } = await readRegion(path)
  if (config.store.region !== undefined && config.store.region !== file.name) fail(`IMDS_REGION is ${config.store.region}, and ${path} says ${file.name}: correct one of them`, EX_CONFIG)
  const database = await openDatabase(config.database, true, (error) => { console.error(`imds-api: ${error.message}`) })
  try {
    await migrate(database.tables)
    let difference: readonly string[] = []
    await inTransaction(database.tables, async (change) => {
      difference = await applyRegion(change, file, prune, secrets)
      return isDryRun ? refuse('bad_request', 'a dry run is rolled back') : undefined
    })
    console.log(difference.length === 0 ? 'no difference' : difference.join('\n'))
  } finally {
    await database.close()
  }
}

/** A region file with its secrets. Ends the process where it is bad. */
async function readRegion(path: string): Promise<{ readonly file: RegionFile, readonly secrets: RegionSecrets }> {
  const file = await parseRegion(readFileSync(path, 'utf8'))
  if (!file.ok) failRegion(path, file.faults)
  const secrets = loadSecrets(file.value, (name) => readFileSync(resolve(dirname(path), name), 'utf8'))
  if (!secrets.ok) failRegion(path, secrets.faults)
  return { file: file.value, secrets: secrets.value }
}

function failRegion(path: string, faults: readonly string[]): never {
  for (const fault of faults) console.error(`imds-api: ${path}: ${fault}`)
  process.exit(EX_CONFIG)
}

async function republish(): Promise<void> {
  const database = await openDatabase(readConfig().config.database, true, (error) => { console.error(`imds-api: ${error.message}`) })
  try {
    let count = 0
    await inTransaction(database.tables, async (change) => { count = await enqueueAll(change) })
    console.log(`${String(count)} servers will be published again`)
  } finally {
    await database.close()
  }
}
