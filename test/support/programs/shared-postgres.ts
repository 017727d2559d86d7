/**
 * One PostgreSQL server for all test files of a run: each test gets a database of its own in it, a copy of a template,
 * in a fifth of the time that a server of its own takes. `npm test` starts it; a file that runs alone starts its own.
 */
import { spawn } from 'node:child_process'
import { chmodSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Test } from 'tap'
import { startPostgres, type ChildPostgres } from '../../../src/postgres.ts'
import { aRegion } from '../fixtures/region.ts'
import { fillDatabase } from './api.ts'
import { shortDirectory } from '../test-directory.ts'

/** The database with empty tables, or with the region `aRegion()`. */
export type TemplateName = 'tables' | 'region'

/** A test needs nothing of its database after a crash of the machine. */
const SETTINGS = ['fsync=off', 'max_connections=600']

/** Starts the server in a directory, with the templates. */
export async function startSharedPostgres(directory: string): Promise<ChildPostgres> {
  const server = await startPostgres(directory, SETTINGS)
  await fillDatabase(server.url)
  const pool = openAdministration(server.url)
  for (const name of ['tables', 'region']) await pool.query(copyOf('postgres', name))
  await pool.end()
  await fillDatabase(databaseAt(server.url, 'region'), aRegion())
  return server
}

/** Makes a database, which the end of the test deletes. Returns its URL. */
export async function makeDatabase(t: Pick<Test, 'teardown'>, template: TemplateName): Promise<string> {
  const server = process.env['IMDS_TEST_POSTGRES'] ?? (await (ownServer ??= startForProcess()))
  const name = `test_${process.pid}_${count++}`
  const pool = (administration ??= openAdministration(server))
  await pool.query(copyOf(template, name))
  t.teardown(() => pool.query(`drop database ${name} with (force)`))
  return databaseAt(server, name)
}
let count = 0
/** For all test files of a process: a connection takes PostgreSQL longer than a copy. */
let administration: pg.Pool | undefined
let ownServer: Promise<string> | undefined

/** Starts the server of a file that runs alone. It ends with this process, and a child deletes its directory then. */
async function startForProcess(): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-'))
  chmodSync(directory, 0o711) // as root, PostgreSQL runs as another user
  const command = ['-c', 'cat > /dev/null; sleep 1; rm -rf "$0"', directory]
  spawn('sh', command, { stdio: ['pipe', 'ignore', 'ignore'], detached: true }).unref()
  return (await startSharedPostgres(join(directory, 'postgres'))).url
}

/**
 * Starts a server that only this test uses, for what shows in the whole server: locks, and transactions, whose oldest
 * one delays the events of all databases. `log`: its file.
 */
export async function startOwnPostgres(
  t: Pick<Test, 'teardown'>,
): Promise<{ readonly url: string; readonly log: string }> {
  const directory = join(shortDirectory(t, 0o711), 'postgres')
  const { url, stop } = await startPostgres(directory, [...SETTINGS, 'log_lock_waits=on'])
  t.teardown(stop)
  return { url, log: join(directory, 'log') }
}

/** Opens the connection that makes and deletes databases. An idle one does not keep the process running. */
function openAdministration(connectionString: string): pg.Pool {
  return new pg.Pool({ connectionString, max: 1, idleTimeoutMillis: 0, allowExitOnIdle: true })
}

/** To copy the files takes a third of the time of PostgreSQL's default, which logs each page. */
function copyOf(template: string, name: string): string {
  return `create database ${name} template ${template} strategy file_copy`
}

/** The URL of another database of a server. */
export function databaseAt(server: string, name: string): string {
  return server.replace('/postgres?', `/${name}?`)
}
