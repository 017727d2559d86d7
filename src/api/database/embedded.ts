/**
 * The embedded PostgreSQL: a server of our own, in our state directory, on a unix socket that only we can open.
 *
 *   STATE/postgres/data     the database, made by initdb at the first start
 *   STATE/postgres/.s.PGSQL.5432, STATE/postgres/log
 *   STATE/start.lock        held while a process looks for the server, makes the database and starts it
 *   STATE/command.lock      held by a command until it ends, since a command that has started the server stops it at its end
 *
 * The server stops with us. If we are killed, it keeps running, and the next start takes it over. An advisory lock in the database itself shows whether an
 * imds-api is alive: PostgreSQL releases it when the connection of its holder ends.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, chownSync, fchownSync, existsSync, mkdirSync, openSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { UNIX_SOCKET_PATH_MAX_BYTES } from '../../runtime/host-port.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { takeLock as takeFileLock } from '../../store/files/lock.ts'
import { environmentOf, findBinaries, majorVersion, type Binaries } from './binaries.ts'

/** How to connect to the server: `host` is the directory of its socket. */
export interface EmbeddedServer {
  readonly connection: { readonly host: string, readonly user: string, readonly database: string }
  /** Resolves when the server has ended without our doing. */
  readonly ended: Promise<void>
  stop(): Promise<void>
}

const USER = 'imds'
const DATABASE = 'postgres'
/** The advisory lock of the imds-api that uses the directory. Any fixed number. */
const LOCK = 8_170
const START_TIMEOUT_MS = 60_000
/** How long a command waits for another one. */
const COMMAND_TIMEOUT_MS = 60_000
const STOP_TIMEOUT_MS = 30_000
/** PostgreSQL's code for a server that is starting up, recovering or shutting down. */
export const CANNOT_CONNECT_NOW = '57P03'
/** A process that was just killed holds its lock until the server has seen its connection end. */
const LOCK_TIMEOUT_MS = 3_000
const LOCK_POLL_MS = 20
/** In bytes. PostgreSQL makes its socket, and a lock file for the socket, in this directory. */
const LONGEST_DIRECTORY = UNIX_SOCKET_PATH_MAX_BYTES - '/.s.PGSQL.5432.lock'.length

/** The failure of a start that found a running PostgreSQL server, which another imds-api then stopped. */
export function wasStopped(stateDirectory: string, cause: unknown): StartFailure {
  return new StartFailure(`the PostgreSQL server in ${stateDirectory} was stopped during this start, by another imds-api: start again`, { cause })
}

/**
 * Starts the server, or takes over one whose imds-api was killed. With `shared`, for a command, it also uses one whose imds-api is alive, and leaves it
 * running; commands take turns. Rejects with a message that names the remedy, and leaves nothing running then.
 */
export async function startEmbedded(stateDirectory: string, shared: boolean): Promise<EmbeddedServer> {
  const directory = join(stateDirectory, 'postgres')
  if (Buffer.byteLength(directory) > LONGEST_DIRECTORY) throw new StartFailure(`the path of a unix socket would be too long: choose a shorter IMDS_API_STATE_DIR than ${stateDirectory}`)
  mkdirSync(stateDirectory, { recursive: true, mode: 0o711 })
  if (!shared) return startOrJoin(stateDirectory, directory, false)
  const turn = await takeFileLock(join(stateDirectory, 'command.lock'), COMMAND_TIMEOUT_MS).catch((error: unknown) => {
    throw new StartFailure(`another command of imds-api uses ${stateDirectory}: run this one when that has ended (${(error as Error).message})`, { cause: error })
  })
  try {
    const server = await startOrJoin(stateDirectory, directory, true)
    return { ...server, stop: () => server.stop().finally(() => { turn.close() }) }
  } catch (error) {
    turn.close()
    throw error
  }
}

async function startOrJoin(stateDirectory: string, directory: string, shared: boolean): Promise<EmbeddedServer> {
  const data = join(directory, 'data')
  checkVersion(data)
  const connection = { host: directory, user: USER, database: DATABASE }
  const launched = await oneAtATime(stateDirectory, async () => {
    const found = await probeUntilIdle(connection) // up: the server of an imds-api that was killed or, for a command, that runs
    return found === 'up' ? undefined : prepareAndLaunch(stateDirectory, directory, data, connection)
  })
  const lock = await takeLock(connection, shared ? 0 : LOCK_TIMEOUT_MS).catch((error: unknown) => {
    throw wasStopped(stateDirectory, error)
  })
  if (lock === undefined && shared) return { connection, ended: new Promise(() => { /* not ours */ }), stop: () => Promise.resolve() }
  if (lock === undefined) throw new StartFailure(`another imds-api uses ${stateDirectory}: stop it, or choose another IMDS_API_STATE_DIR`)
  const pid = postmasterPid(data)
  let stopping = false
  const ended = new Promise<void>((resolve) => {
    const check = () => { if (!stopping) resolve() }
    lock.on('end', check).on('error', check)
    void launched?.exited.then(check)
  })
  return {
    connection, ended,
    stop: async () => {
      stopping = true
      await lock.end().catch(() => { /* the server has closed it already */ })
      await stopServer(data, pid)
    },
  }
}

/** True if the database has been made. It is made as a whole or not at all. */
export function embeddedExists(stateDirectory: string): boolean {
  return existsSync(join(stateDirectory, 'postgres/data'))
}

/** Runs a task while no other process starts the server. A second one waits, and then finds the server of the first. */
async function oneAtATime<T>(stateDirectory: string, task: () => Promise<T>): Promise<T> {
  const start = await takeFileLock(join(stateDirectory, 'start.lock'), START_TIMEOUT_MS).catch((error: unknown) => {
    throw new StartFailure(`cannot start PostgreSQL in ${stateDirectory}: ${(error as Error).message}`, { cause: error })
  })
  try {
    return await task()
  } finally {
    start.close()
  }
}

async function prepareAndLaunch(
  stateDirectory: string, directory: string, data: string, connection: EmbeddedServer['connection'],
): Promise<{ readonly exited: Promise<void> }> {
  const binaries = findBinaries(stateDirectory)
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  if (binaries.user !== undefined) chownSync(directory, binaries.user.uid, binaries.user.gid)
  if (!existsSync(data)) await initialise(data, binaries)
  return launch(directory, data, binaries, connection)
}

/** Refuses a database of another major version, which our programs cannot read. */
function checkVersion(data: string): void {
  if (!existsSync(join(data, 'PG_VERSION'))) return
  const theirs = readFileSync(join(data, 'PG_VERSION'), 'utf8').trim()
  const ours = majorVersion()
  if (theirs === ours) return
  throw new StartFailure(`${data} is a database of PostgreSQL ${theirs}, and this version of imds-api brings PostgreSQL ${ours}. Move it over with the programs of both versions:
  postgres -D ${data} -k /tmp -c listen_addresses=''   # of version ${theirs}, as the owner of the directory
  pg_dump -h /tmp -U ${USER} ${DATABASE} > imds.sql
  mv ${data} ${data}.${theirs}                           # after you stopped that server
  imds-api                                             # once: makes an empty database; then stop it
  postgres -D ${data} -k /tmp -c listen_addresses=''   # of version ${ours}
  psql -h /tmp -U ${USER} ${DATABASE} -c 'drop schema public cascade' -c 'create schema public' -f imds.sql`)
}

/** Makes the database beside its place and renames it, so that a kill never leaves half a database. */
async function initialise(data: string, { native, user }: Binaries): Promise<void> {
  rmSync(`${data}.new`, { recursive: true, force: true })
  const child = spawn(join(native, 'bin/initdb'), [
    '--pgdata', `${data}.new`, '--username', USER, '--auth-local=trust', '--auth-host=reject', '--encoding=UTF8', '--locale=C',
  ], { ...user, cwd: '/', env: environmentOf(native), stdio: ['ignore', 'ignore', 'pipe'], detached: true }) // detached: Ctrl-C stops us after it
  const [stderr] = await Promise.all([child.stderr.toArray(), once(child, 'close')])
  if (child.exitCode !== 0) {
    const reason = Buffer.concat(stderr as Buffer[]).toString().trim()
    const remedy = reason.includes('Permission denied') ? `; every directory above ${data} must let the user with uid ${String(user?.uid ?? process.getuid?.())} pass (chmod o+x)` : ''
    throw new StartFailure(`initdb failed: ${reason}${remedy}`)
  }
  renameSync(`${data}.new`, data)
}

/** Starts the server and waits until it accepts connections. `exited` resolves when the process has ended. */
async function launch(
  directory: string, data: string, { native, user }: Binaries, connection: EmbeddedServer['connection'],
): Promise<{ readonly exited: Promise<void> }> {
  const path = join(directory, 'log')
  const log = openSync(path, 'w', 0o600)
  if (user !== undefined) fchownSync(log, user.uid, user.gid)
  const child = spawn(join(native, 'bin/postgres'), [
    '-D', data, '-k', directory, '-c', 'listen_addresses=', '-c', 'unix_socket_permissions=0700', '-c', 'log_min_messages=warning', '-c', 'jit=off',
  ], { ...user, cwd: '/', env: environmentOf(native), stdio: ['ignore', log, log], detached: true }) // detached: Ctrl-C must reach us first
  closeSync(log)
  child.unref()
  const exited = new Promise<void>((resolve) => {
    child.once('exit', () => { resolve() })
    child.once('error', () => { resolve() })
  })
  const deadline = performance.now() + START_TIMEOUT_MS
  while (await probe(connection) !== 'up') {
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) {
      throw new StartFailure(`PostgreSQL does not start: ${readFileSync(path, 'utf8').trim().split('\n').slice(-5).join('; ')}`)
    }
    if (performance.now() > deadline) {
      child.kill('SIGQUIT')
      throw new StartFailure(`PostgreSQL accepts no connections after ${String(START_TIMEOUT_MS / 1000)} s; ${path} may say why`)
    }
    await sleep(20)
  }
  return { exited }
}

/** Waits while another process starts or stops the server. */
async function probeUntilIdle(connection: EmbeddedServer['connection']): Promise<'up' | 'busy' | 'away'> {
  for (const deadline = performance.now() + START_TIMEOUT_MS; ;) {
    const found = await probe(connection)
    if (found !== 'busy' || performance.now() > deadline) return found
    await sleep(20)
  }
}

/** Whether the server accepts connections. `busy`: it is starting up or shutting down. `away`: none listens. */
async function probe(connection: EmbeddedServer['connection']): Promise<'up' | 'busy' | 'away'> {
  const client = new pg.Client(connection)
  client.on('error', () => { /* connect rejects too */ })
  try {
    await client.connect()
    await client.end()
    return 'up'
  } catch (error) {
    return (error as { code?: string }).code === CANNOT_CONNECT_NOW ? 'busy' : 'away'
  }
}

/** Returns the connection that holds the lock; undefined: an imds-api that is alive holds it. */
async function takeLock(connection: EmbeddedServer['connection'], timeoutMs: number): Promise<pg.Client | undefined> {
  const client = new pg.Client(connection)
  client.on('error', () => { /* reported by `ended` */ })
  await client.connect()
  const deadline = performance.now() + timeoutMs
  for (;;) {
    const { rows } = await client.query<{ taken: boolean }>('select pg_try_advisory_lock($1) as taken', [LOCK])
    if (rows[0]?.taken === true) return client
    if (performance.now() >= deadline) break
    await sleep(LOCK_POLL_MS)
  }
  await client.end()
  return undefined
}

function postmasterPid(data: string): number {
  return Number(readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n', 1)[0])
}

/** Ends the server: SIGINT is PostgreSQL's fast shutdown, which closes connections and loses nothing. */
async function stopServer(data: string, pid: number): Promise<void> {
  const deadline = performance.now() + STOP_TIMEOUT_MS
  signal(pid, 'SIGINT')
  while (existsSync(join(data, 'postmaster.pid')) && isAlive(pid)) {
    if (performance.now() > deadline) {
      signal(pid, 'SIGQUIT')
      return
    }
    await sleep(10)
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch { /* it has ended */ }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
