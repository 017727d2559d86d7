/** Makes the database of the embedded server, and starts the server. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, existsSync, fchownSync, fstatSync, mkdirSync, openSync, statfsSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { StartFailure } from '../../runtime/listen.ts'
import { environmentOf, findBinaries, type Binaries } from './binaries.ts'
import { readOwned, type Launched } from './postmaster.ts'

/** How to connect to the server: `host` is the directory of its socket. */
export interface Connection {
  readonly host: string
  readonly user: string
  readonly database: string
}

/** How long a start may take. */
export const START_TIMEOUT_MS = 60_000
/** PostgreSQL's code for a server that is starting up, recovering or shutting down. */
export const CANNOT_CONNECT_NOW = '57P03'
const POLL_MS = 20
/** PostgreSQL does not start without room for another file of its write-ahead log. */
const WAL_FILE_BYTES = 16 << 20

/**
 * initdb. It makes the database beside its place and renames it, so that a kill never leaves half a database. $0: the
 * directory; the rest: the command.
 */
const INITIALISE = '/bin/rm -rf "$0.new" && "$@" --pgdata="$0.new" && /bin/mv "$0.new" "$0"'
const INITDB_OPTIONS = ['--auth-local=trust', '--auth-host=reject', '--encoding=UTF8', '--locale=C']
/** $0: the file of the log; the rest: the command. */
const LAUNCH = 'umask 077; /bin/rm -f "$0"; exec "$@" > "$0" 2>&1'
const SETTINGS = ['listen_addresses=', 'unix_socket_permissions=0700', 'log_min_messages=warning', 'jit=off']

/** Makes the database if there is none, starts the server, and waits until it accepts connections. */
export async function launchServer(stateDirectory: string, connection: Connection): Promise<Launched> {
  const directory = connection.host
  const binaries = findBinaries(stateDirectory)
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  if (binaries.user !== undefined) giveTo(directory, binaries.user)
  const data = join(directory, 'data')
  if (!existsSync(data)) await initialise(data, connection.user, binaries)
  return launch(data, connection, binaries)
}

/**
 * Gives our directory to the user who runs PostgreSQL. Refuses a link, and a directory that a third user made: others
 * may write to the one above.
 */
function giveTo(directory: string, { uid, gid }: NonNullable<Binaries['user']>): void {
  let fd: number
  try {
    fd = openSync(directory, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW)
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException
    throw new StartFailure(`${directory} is not the directory that imds-api made: delete it (${code})`, {
      cause: error,
    })
  }
  try {
    const owner = fstatSync(fd).uid
    if (owner !== 0 && owner !== uid)
      throw new StartFailure(
        `${directory} belongs to the user with the id ${String(owner)}: ` +
          'choose an IMDS_API_STATE_DIR in which only root can create files',
      )
    fchownSync(fd, uid, gid)
  } finally {
    closeSync(fd)
  }
}

async function initialise(data: string, owner: string, { native, user }: Binaries): Promise<void> {
  const child = spawn(
    '/bin/sh',
    ['-c', INITIALISE, data, join(native, 'bin/initdb'), '--username', owner, ...INITDB_OPTIONS],
    { ...user, cwd: '/', env: environmentOf(native), stdio: ['ignore', 'ignore', 'pipe'], detached: true },
  ) // detached: Ctrl-C stops us after it
  const [stderr] = await Promise.all([child.stderr.toArray(), once(child, 'close')])
  if (child.exitCode === 0) return
  const reason = Buffer.concat(stderr as Buffer[])
    .toString()
    .trim()
  const uid = String(user?.uid ?? process.getuid?.())
  const remedy = `; every directory above ${data} must let the user with uid ${uid} pass (chmod o+x)`
  throw new StartFailure(`initdb failed: ${reason}${reason.includes('Permission denied') ? remedy : ''}`)
}

async function launch(data: string, connection: Connection, { native, user }: Binaries): Promise<Launched> {
  const directory = connection.host
  const log = join(directory, 'log')
  const settings = SETTINGS.flatMap((setting) => ['-c', setting])
  const child = spawn(
    '/bin/sh',
    ['-c', LAUNCH, log, join(native, 'bin/postgres'), '-D', data, '-k', directory, ...settings],
    { ...user, cwd: '/', env: environmentOf(native), stdio: 'ignore', detached: true },
  ) // detached: Ctrl-C must reach us first
  child.unref()
  const exited = new Promise<void>((resolve) => {
    const resolved = () => {
      resolve()
    }
    child.once('exit', resolved).once('error', resolved)
  })
  const deadline = performance.now() + START_TIMEOUT_MS
  while ((await probe(connection)) !== 'up') {
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) {
      const reason = reasonIn(readOwned(directory, 'log') ?? '')
      throw new StartFailure(`PostgreSQL does not start: ${fullDisk(directory)}${reason ?? `${log} cannot be written`}`)
    }
    if (performance.now() > deadline) {
      child.kill('SIGQUIT')
      const seconds = String(START_TIMEOUT_MS / 1000)
      throw new StartFailure(`PostgreSQL accepts no connections after ${seconds} s; ${log} may say why`)
    }
    await sleep(POLL_MS)
  }
  return { child, exited }
}

/** Why the server has ended, by its log: its fatal errors, or else its last lines. Our own attempts to connect are none. */
function reasonIn(log: string): string | undefined {
  const lines = log
    .split('\n')
    .filter((line) => line.trim() !== '' && !/the database system is (starting|not yet)/.test(line))
  const causes = lines.filter((line) => /\b(FATAL|PANIC): /.test(line))
  const reasons = causes.length > 0 ? causes : lines
  return reasons.length === 0 ? undefined : reasons.slice(-5).join('; ')
}

/** Says that the disk is full, since the log, which is on it, may not say so. */
function fullDisk(directory: string): string {
  const { bavail, bsize } = statfsSync(directory)
  return bavail * bsize < WAL_FILE_BYTES ? `the disk of ${directory} is full; ` : ''
}

/** Waits while another process starts or stops the server. Returns whether the server accepts connections. */
export async function isUp(connection: Connection): Promise<boolean> {
  for (const deadline = performance.now() + START_TIMEOUT_MS; ;) {
    const found = await probe(connection)
    if (found !== 'busy' || performance.now() > deadline) return found === 'up'
    await sleep(POLL_MS)
  }
}

/** Whether the server accepts connections. `busy`: it is starting up or shutting down. `away`: none listens. */
async function probe(connection: Connection): Promise<'up' | 'busy' | 'away'> {
  const client = new pg.Client({ ...connection })
  client.on('error', () => {
    /* connect rejects too */
  })
  try {
    await client.connect()
    await client.end()
    return 'up'
  } catch (error) {
    return (error as { code?: string }).code === CANNOT_CONNECT_NOW ? 'busy' : 'away'
  }
}
