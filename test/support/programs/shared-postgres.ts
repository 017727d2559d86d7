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
  await settings.pool.query(`alter system set max_connections = ${String(CONNECTIONS)}`)
  await settings.close() // it needs a restart
  const server = await startEmbedded(stateDirectory)
  const directory = server.connection.host
  await withClient(directory, async (client) => {
    for (const name of ['tables', 'region']) await client.query(`create database ${name} template postgres`)
  })
  await fill(urlOf(directory, 'region'), aRegion())
  process.env['IMDS_TEST_POSTGRES'] = directory
  return server
}

/** Makes a database, which the end of the test deletes. Undefined: there is no shared server. */
export async function makeDatabase(t: Pick<Test, 'teardown'>, template: TemplateName): Promise<string | undefined> {
  const directory = process.env['IMDS_TEST_POSTGRES']
  if (directory === undefined) return undefined
  const name = `test_${String(process.pid)}_${String(count++)}`
  await withClient(directory, (client) => client.query(`create database ${name} template ${template}`))
  t.teardown(() => withClient(directory, (client) => client.query(`drop database ${name} with (force)`)))
  return urlOf(directory, name)
}
let count = 0

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

async function withClient<T>(directory: string, use: (client: pg.Client) => Promise<T>): Promise<void> {
  const client = new pg.Client(urlOf(directory, 'postgres'))
  await client.connect()
  try {
    await use(client)
  } finally {
    await client.end()
  }
}
