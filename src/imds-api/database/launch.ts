/** Makes the database of the embedded server, and starts the server. */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import {
  closeSync,
  constants,
  existsSync,
  fchownSync,
  fstatSync,
  mkdirSync,
  openSync,
  readSync,
  statfsSync,
  statSync,
} from 'node:fs'
import { join } from 'node:path'
import type { Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { StartFailure } from '../../runtime/listen.ts'
import { buildEnvironment, findBinaries, type Binaries } from './binaries.ts'

/** How to connect to the server: `host` is the directory of its socket. */
export interface ServerSocket {
  readonly host: string
  readonly user: string
  readonly database: string
}

/** A server that this process has started. `exited` resolves when it has ended. */
export interface LaunchedServer {
  readonly child: ChildProcessByStdio<Writable, null, null>
  readonly exited: Promise<void>
}

/** How long a start may take. */
export const START_TIMEOUT_MS = 60_000
/** PostgreSQL's code for a server that is starting up, recovering or shutting down. */
const CANNOT_CONNECT_NOW = '57P03'
const POLL_MS = 20
const STOP_TIMEOUT_MS = 30_000
/** The most that is read of a file, from its end. */
const MAX_BYTES = 64 * 1024
/** PostgreSQL does not start without room for another file of its write-ahead log. */
const WAL_FILE_BYTES = 16 << 20

/**
 * initdb. It makes the database beside its place and renames it, so that a kill never leaves half a database. $0: the
 * directory; the rest: the command.
 */
const INITIALISE = '/bin/rm -rf "$0.new" && "$@" --pgdata="$0.new" && /bin/mv "$0.new" "$0"'
const INITDB_OPTIONS = ['--auth-local=trust', '--auth-host=reject', '--encoding=UTF8', '--locale=C']
/**
 * Starts the server, and ends it by PostgreSQL's fast shutdown when standard input ends: when this process ends,
 * however it ends. $0: the file of the log; the rest: the command.
 */
const LAUNCH = `umask 077; /bin/rm -f "$0"; exec 3<&0
"$@" > "$0" 2>&1 3<&- < /dev/null & server=$!
{ read -r end; kill -INT "$server"; } <&3 &
exec 3<&-; wait "$server"`
const SETTINGS = ['listen_addresses=', 'unix_socket_permissions=0700', 'log_min_messages=warning', 'jit=off']

export async function launchServer(stateDirectory: string, connection: ServerSocket): Promise<LaunchedServer> {
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
        `${directory} belongs to the user with the id ${owner}: ` +
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
    { ...user, cwd: '/', env: buildEnvironment(native), stdio: ['ignore', 'ignore', 'pipe'], detached: true },
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

async function launch(data: string, connection: ServerSocket, { native, user }: Binaries): Promise<LaunchedServer> {
  const directory = connection.host
  const log = join(directory, 'log')
  const settings = SETTINGS.flatMap((setting) => ['-c', setting])
  const child = spawn(
    '/bin/sh',
    ['-c', LAUNCH, log, join(native, 'bin/postgres'), '-D', data, '-k', directory, ...settings],
    { ...user, cwd: '/', env: buildEnvironment(native), stdio: ['pipe', 'ignore', 'ignore'], detached: true },
  ) // detached: Ctrl-C must reach us first
  child.unref()
  child.stdin.on('error', () => undefined) // it has ended
  const exited = new Promise<void>((resolve) => {
    const resolved = () => {
      child.stdin.destroy()
      resolve()
    }
    child.once('exit', resolved).once('error', resolved)
  })
  const deadline = performance.now() + START_TIMEOUT_MS
  while ((await probeServer(connection)) !== 'up') {
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) {
      const reason = reasonIn(readOwnFile(directory, 'log') ?? '')
      throw new StartFailure(`PostgreSQL does not start: ${fullDisk(directory)}${reason ?? `${log} cannot be written`}`)
    }
    if (performance.now() > deadline) {
      kill(child)
      const seconds = String(START_TIMEOUT_MS / 1000)
      throw new StartFailure(`PostgreSQL accepts no connections after ${seconds} s; ${log} may say why`)
    }
    await sleep(POLL_MS)
  }
  return { child, exited }
}

/** Says why the server has ended: the fatal errors in its log, or its last lines. Our own connects do not count. */
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

/** Ends a server by PostgreSQL's fast shutdown, which closes connections and loses nothing. */
export async function stopLaunched({ child, exited }: LaunchedServer): Promise<void> {
  child.ref() // nothing else may keep this process running until then
  child.stdin.end()
  const isLate = await Promise.race([exited, sleep(STOP_TIMEOUT_MS, true, { ref: false })])
  if (isLate === true) kill(child)
}

/** Ends the server at once, and the shell that started it. */
function kill({ pid }: LaunchedServer['child']): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGQUIT')
  } catch {
    /* they have ended */
  }
}

/**
 * The end of a file of the server. Undefined: it is not a file of the owner of `directory`, who may have put anything
 * there, or there is none. `name`: its path in the directory.
 */
export function readOwnFile(directory: string, name: string): string | undefined {
  let fd: number
  try {
    fd = openSync(
      join(directory, name),
      constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK | constants.O_NOCTTY,
    )
  } catch {
    return undefined
  }
  try {
    const { uid, size } = fstatSync(fd)
    if (!fstatSync(fd).isFile() || uid !== statSync(directory).uid) return undefined
    const bytes = Buffer.alloc(Math.min(size, MAX_BYTES))
    return bytes.toString('utf8', 0, readSync(fd, bytes, 0, bytes.length, size - bytes.length))
  } finally {
    closeSync(fd)
  }
}

/** Whether the server accepts connections. `busy`: it is starting up or shutting down. `away`: none listens. */
export async function probeServer(connection: ServerSocket): Promise<'up' | 'busy' | 'away'> {
  const client = new pg.Client({ ...connection })
  client.on('error', () => undefined) // connect rejects too
  try {
    await client.connect()
    await client.end()
    return 'up'
  } catch (error) {
    return (error as { code?: string }).code === CANNOT_CONNECT_NOW ? 'busy' : 'away'
  }
}
