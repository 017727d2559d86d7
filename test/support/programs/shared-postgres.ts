/**
 * One PostgreSQL server for all test files of a run: each test gets a database of its own in it, a copy of a template,
 * in a fifth of the time that a server of its own takes. `npm test` starts it; a file that runs alone has none.
 */
import pg from 'pg'
import type { Test } from 'tap'
import { startEmbedded, type EmbeddedServer } from '../../../src/imds-api/database/embedded.ts'
import { migrate } from '../../../src/imds-api/database/migrate.ts'
import { openDatabase } from '../../../src/imds-api/database/open.ts'
import type { RegionFile } from '../../../src/imds-api/region/schema.ts'
import { aRegion } from '../fixtures/region.ts'
import { apply, startState } from './api.ts'

/** The database with empty tables, or with the region `aRegion()`. */
export type TemplateName = 'tables' | 'region'

const CONNECTIONS = 600

/** Starts the server in a state directory with empty tables. Sets the variable by which the test files find it. */
export async function startSharedPostgres(stateDirectory: string): Promise<EmbeddedServer> {
  const settings = await startState(stateDirectory)
  await settings.pool.query(`alter system set max_connections = ${CONNECTIONS}`)
  await settings.close() // it needs a restart
  const server = await startEmbedded(stateDirectory)
  const directory = server.connection.host
  const pool = openAdministration(directory)
  for (const name of ['tables', 'region']) await pool.query(copyOf('postgres', name))
  await pool.end()
  await fill(urlOf(directory, 'region'), aRegion())
  process.env['IMDS_TEST_POSTGRES'] = directory
  return server
}

/** Makes a database, which the end of the test deletes. Undefined: there is no shared server. */
export async function makeDatabase(t: Pick<Test, 'teardown'>, template: TemplateName): Promise<string | undefined> {
  const directory = process.env['IMDS_TEST_POSTGRES']
  if (directory === undefined) return undefined
  const name = `test_${process.pid}_${count++}`
  const pool = (administration ??= openAdministration(directory))
  await pool.query(copyOf(template, name))
  t.teardown(() => pool.query(`drop database ${name} with (force)`))
  return urlOf(directory, name)
}
let count = 0
/** For all test files of a process: a connection takes PostgreSQL longer than a copy. */
let administration: pg.Pool | undefined

/** Opens the connection that makes and deletes databases. An idle one does not keep the process running. */
function openAdministration(directory: string): pg.Pool {
  return new pg.Pool({
    connectionString: urlOf(directory, 'postgres'),
    max: 1,
    idleTimeoutMillis: 0,
    allowExitOnIdle: true,
  })
}

/** To copy the files takes a third of the time of PostgreSQL's default, which logs each page. */
function copyOf(template: string, name: string): string {
  return `create database ${name} template ${template} strategy file_copy`
}

async function fill(url: string, region: RegionFile): Promise<void> {
  const database = await openDatabase({ kind: 'server', url, passwordFile: undefined }, false, (error) => {
    throw error
  })
  await migrate(database.db)
  await apply(database, region)
  await database.close()
}

function urlOf(directory: string, name: string): string {
  return `postgresql://imds@/${name}?host=${directory}`
}
