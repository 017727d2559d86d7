/**
 * The embedded PostgreSQL: a server of our own, in our state directory, on a unix socket that only we can open.
 *
 *   STATE/postgres/data     the database, made by initdb at the first start
 *   STATE/postgres/.s.PGSQL.5432, STATE/postgres/log
 *   STATE/start.lock        held while a process looks for the server, makes the database and starts it
 *   STATE/command.lock      held by a command until it ends, since a command that has started the server stops it at its end
 *
 * The server stops with us. If we are killed, it keeps running, and the next start takes it over. An advisory lock in
 * the database itself shows whether an imds-api is alive: PostgreSQL releases it when the connection of its holder
 * ends.
 *
 * A process of root works only in a state directory of root (runtime/become-owner.ts). There STATE/postgres belongs to
 * the user who runs PostgreSQL, and only processes of that user create, replace or delete anything in it.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, existsSync, fchownSync, fstatSync, mkdirSync, openSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { otherOwnerOf } from '../../runtime/become-owner.ts'
import { UNIX_SOCKET_PATH_MAX_BYTES } from '../../runtime/host-port.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { takeLock as takeFileLock } from '../../runtime/kernel-lock.ts'
import { environmentOf, findBinaries, majorVersion, type Binaries } from './binaries.ts'
import { readOwned, stopLaunched, stopOther, type Launched } from './postmaster.ts'

/** How to connect to the server: `host` is the directory of its socket. */
export interface EmbeddedServer {
  readonly connection: { readonly host: string; readonly user: string; readonly database: string }
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
/** PostgreSQL's code for a server that is starting up, recovering or shutting down. */
export const CANNOT_CONNECT_NOW = '57P03'
/** A process that was just killed holds its lock until the server has seen its connection end. */
const LOCK_TIMEOUT_MS = 3_000
const LOCK_POLL_MS = 20
/** In bytes. PostgreSQL makes its socket, and a lock file for the socket, in this directory. */
const LONGEST_DIRECTORY = UNIX_SOCKET_PATH_MAX_BYTES - '/.s.PGSQL.5432.lock'.length

/** The failure of a start that found a running PostgreSQL server, which another imds-api then stopped. */
export function wasStopped(stateDirectory: string, cause: unknown): StartFailure {
  return new StartFailure(
    `the PostgreSQL server in ${stateDirectory} was stopped during this start, by another imds-api: start again`,
    { cause },
  )
}

/**
 * Starts the server, or takes over one whose imds-api was killed. With `shared`, a command joins a running server and
 * leaves it running; commands take turns. Rejects with a message that names the remedy, and
 * leaves nothing running then.
 */
export async function startEmbedded(stateDirectory: string, shared: boolean): Promise<EmbeddedServer> {
  const directory = join(stateDirectory, 'postgres')
  if (Buffer.byteLength(directory) > LONGEST_DIRECTORY)
    throw new StartFailure(
      `the path of a unix socket would be too long: choose a shorter IMDS_API_STATE_DIR than ${stateDirectory}`,
    )
  const owner = otherOwnerOf(stateDirectory)
  if (owner !== undefined) {
    throw new StartFailure(
      `${stateDirectory} belongs to the user with the id ${String(owner.uid)}: run imds-api as that user, not as root (systemctl start imds-api, or setpriv --reuid=${String(owner.uid)} --regid=${String(owner.gid)} --clear-groups imds-api)`,
    )
  }
  mkdirSync(stateDirectory, { recursive: true, mode: 0o711 })
  if (!shared) return startOrJoin(stateDirectory, directory, false)
  const turn = await takeFileLock(join(stateDirectory, 'command.lock'), COMMAND_TIMEOUT_MS).catch((error: unknown) => {
    throw new StartFailure(
      `another command of imds-api uses ${stateDirectory}: run this one when that has ended (${(error as Error).message})`,
      { cause: error },
    )
  })
  try {
    const server = await startOrJoin(stateDirectory, directory, true)
    return {
      ...server,
      stop: () =>
        server.stop().finally(() => {
          turn.close()
        }),
    }
  } catch (error) {
    turn.close()
    throw error
  }
}

async function startOrJoin(stateDirectory: string, directory: string, shared: boolean): Promise<EmbeddedServer> {
  const data = join(directory, 'data')
  checkVersion(directory, data)
  const connection = { host: directory, user: USER, database: DATABASE }
  const launched = await oneAtATime(stateDirectory, async () => {
    // up: the server of an imds-api that was killed or, for a command, that runs
    const found = await probeUntilIdle(connection)
    return found === 'up' ? undefined : prepareAndLaunch(stateDirectory, directory, data, connection)
  })
  const lock = await takeLock(connection, shared ? 0 : LOCK_TIMEOUT_MS).catch((error: unknown) => {
    throw wasStopped(stateDirectory, error)
  })
  if (lock === undefined && shared)
    return {
      connection,
      ended: new Promise(() => {
        /* not ours */
      }),
      stop: () => Promise.resolve(),
    }
  if (lock === undefined)
    throw new StartFailure(`another imds-api uses ${stateDirectory}: stop it, or choose another IMDS_API_STATE_DIR`)
  let stopping = false
  const ended = new Promise<void>((resolve) => {
    const check = () => {
      if (!stopping) resolve()
    }
    lock.on('end', check).on('error', check)
    void launched?.exited.then(check)
  })
  return {
    connection,
    ended,
    stop: async () => {
      stopping = true
      await lock.end().catch(() => {
        /* the server has closed it already */
      })
      await (launched === undefined ? stopOther(directory) : stopLaunched(launched))
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
    throw new StartFailure(`cannot start PostgreSQL in ${stateDirectory}: ${(error as Error).message}`, {
      cause: error,
    })
  })
  try {
    return await task()
  } finally {
    start.close()
  }
}

async function prepareAndLaunch(
  stateDirectory: string,
  directory: string,
  data: string,
  connection: EmbeddedServer['connection'],
): Promise<Launched> {
  const binaries = findBinaries(stateDirectory)
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  if (binaries.user !== undefined) giveTo(directory, binaries.user)
  if (!existsSync(data)) await initialise(data, binaries)
  return launch(directory, data, binaries, connection)
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
    throw new StartFailure(
      `${directory} is not the directory that imds-api made: delete it (${(error as NodeJS.ErrnoException).code ?? ''})`,
      { cause: error },
    )
  }
  try {
    const owner = fstatSync(fd).uid
    if (owner !== 0 && owner !== uid)
      throw new StartFailure(
        `${directory} belongs to the user with the id ${String(owner)}: choose an IMDS_API_STATE_DIR in which only root can create files`,
      )
    fchownSync(fd, uid, gid)
  } finally {
    closeSync(fd)
  }
}

/** Refuses a database of another major version, which our programs cannot read. */
function checkVersion(directory: string, data: string): void {
  const theirs = readOwned(directory, 'data/PG_VERSION')?.trim()
  const ours = majorVersion()
  if (theirs === undefined || theirs === ours) return
  throw new StartFailure(`${data} is a database of PostgreSQL ${theirs}, and this version of imds-api brings PostgreSQL ${ours}. Move it over:
  imds-api backup imds.backup    # with the version of imds-api that made it
  mv ${data} ${data}.${theirs}
  imds-api restore imds.backup   # with this version`)
}

/**
 * Makes the database beside its place and renames it, so that a kill never leaves half a database. $0: the directory;
 * the rest: the command.
 */
const INITIALISE = '/bin/rm -rf "$0.new" && "$@" --pgdata="$0.new" && /bin/mv "$0.new" "$0"'
/** $0: the file of the log; the rest: the command. */
const LAUNCH = 'umask 077; /bin/rm -f "$0"; exec "$@" > "$0" 2>&1'

async function initialise(data: string, { native, user }: Binaries): Promise<void> {
  const child = spawn(
    '/bin/sh',
    [
      '-c',
      INITIALISE,
      data,
      join(native, 'bin/initdb'),
      '--username',
      USER,
      '--auth-local=trust',
      '--auth-host=reject',
      '--encoding=UTF8',
      '--locale=C',
    ],
    { ...user, cwd: '/', env: environmentOf(native), stdio: ['ignore', 'ignore', 'pipe'], detached: true },
  ) // detached: Ctrl-C stops us after it
  const [stderr] = await Promise.all([child.stderr.toArray(), once(child, 'close')])
  if (child.exitCode !== 0) {
    const reason = Buffer.concat(stderr as Buffer[])
      .toString()
      .trim()
    const remedy = reason.includes('Permission denied')
      ? `; every directory above ${data} must let the user with uid ${String(user?.uid ?? process.getuid?.())} pass (chmod o+x)`
      : ''
    throw new StartFailure(`initdb failed: ${reason}${remedy}`)
  }
}

/** Starts the server and waits until it accepts connections. */
async function launch(
  directory: string,
  data: string,
  { native, user }: Binaries,
  connection: EmbeddedServer['connection'],
): Promise<Launched> {
  const path = join(directory, 'log')
  const child = spawn(
    '/bin/sh',
    [
      '-c',
      LAUNCH,
      path,
      join(native, 'bin/postgres'),
      '-D',
      data,
      '-k',
      directory,
      '-c',
      'listen_addresses=',
      '-c',
      'unix_socket_permissions=0700',
      '-c',
      'log_min_messages=warning',
      '-c',
      'jit=off',
    ],
    { ...user, cwd: '/', env: environmentOf(native), stdio: 'ignore', detached: true },
  ) // detached: Ctrl-C must reach us first
  child.unref()
  const exited = new Promise<void>((resolve) => {
    child.once('exit', () => {
      resolve()
    })
    child.once('error', () => {
      resolve()
    })
  })
  const deadline = performance.now() + START_TIMEOUT_MS
  while ((await probe(connection)) !== 'up') {
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) {
      throw new StartFailure(
        `PostgreSQL does not start: ${readOwned(directory, 'log')?.trim().split('\n').slice(-5).join('; ') ?? `${path} cannot be written`}`,
      )
    }
    if (performance.now() > deadline) {
      child.kill('SIGQUIT')
      throw new StartFailure(
        `PostgreSQL accepts no connections after ${String(START_TIMEOUT_MS / 1000)} s; ${path} may say why`,
      )
    }
    await sleep(20)
  }
  return { child, exited }
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

/** Returns the connection that holds the lock; undefined: an imds-api that is alive holds it. */
async function takeLock(connection: EmbeddedServer['connection'], timeoutMs: number): Promise<pg.Client | undefined> {
  const client = new pg.Client(connection)
  client.on('error', () => {
    /* reported by `ended` */
  })
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
