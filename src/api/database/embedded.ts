/**
 * The embedded PostgreSQL: a server of our own, in our state directory, on a unix socket that only we can open.
 *
 *   STATE/postgres/data     the database, made by initdb at the first start
 *   STATE/postgres/.s.PGSQL.5432, STATE/postgres/log
 *   STATE/start.lock        held while a process looks for the server, makes the database and starts it
 *   STATE/command.lock      held by a command until it ends: if it has started the server, it stops it at its end
 *
 * The server stops with us. If we are killed, it keeps running, and the next start takes it over. An advisory lock in
 * the database itself shows whether an imds-api is alive: PostgreSQL releases it when the connection of its holder
 * ends.
 *
 * A process of root works only in a state directory of root (runtime/become-owner.ts). There STATE/postgres belongs to
 * the user who runs PostgreSQL, and only processes of that user create, replace or delete anything in it.
 */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { otherOwnerOf } from '../../runtime/become-owner.ts'
import { UNIX_SOCKET_PATH_MAX_BYTES } from '../../runtime/host-port.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { takeLock as takeFileLock } from '../../runtime/kernel-lock.ts'
import { majorVersion } from './binaries.ts'
import { isUp, launchServer, START_TIMEOUT_MS, type Connection } from './launch.ts'
import { readOwned, stopLaunched, stopOther } from './postmaster.ts'

/** The server, once it accepts connections. */
export interface EmbeddedServer {
  readonly connection: Connection
  /** Resolves when the server has ended without our doing. */
  readonly ended: Promise<void>
  stop(): Promise<void>
}

const USER = 'imds'
const DATABASE = 'postgres'
/** The advisory lock of the imds-api that uses the directory. Any fixed number. */
const LOCK = 8_170
/** How long a command waits for another one. */
const COMMAND_TIMEOUT_MS = 60_000
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

/** True if the database has been made. It is made as a whole or not at all. */
export function embeddedExists(stateDirectory: string): boolean {
  return existsSync(join(stateDirectory, 'postgres/data'))
}

/**
 * Starts the server, or takes over one whose imds-api was killed. With `shared`, for a command, it also joins the
 * server of a running imds-api, and leaves it running; commands take turns. Rejects with a message that names the
 * remedy, and leaves nothing running then.
 */
export async function startEmbedded(stateDirectory: string, shared: boolean): Promise<EmbeddedServer> {
  const directory = join(stateDirectory, 'postgres')
  if (Buffer.byteLength(directory) > LONGEST_DIRECTORY)
    throw new StartFailure(
      `the path of a unix socket would be too long: choose a shorter IMDS_API_STATE_DIR than ${stateDirectory}`,
    )
  refuseOtherOwner(stateDirectory)
  mkdirSync(stateDirectory, { recursive: true, mode: 0o711 })
  if (!shared) return startOrJoin(stateDirectory, directory, false)
  const turn = await takeFileLock(join(stateDirectory, 'command.lock'), COMMAND_TIMEOUT_MS).catch((error: unknown) => {
    throw new StartFailure(
      `another command of imds-api uses ${stateDirectory}: ` +
        `run this one when that has ended (${(error as Error).message})`,
      { cause: error },
    )
  })
  const release = () => {
    turn.close()
  }
  try {
    const server = await startOrJoin(stateDirectory, directory, true)
    return { ...server, stop: () => server.stop().finally(release) }
  } catch (error) {
    release()
    throw error
  }
}

async function startOrJoin(stateDirectory: string, directory: string, shared: boolean): Promise<EmbeddedServer> {
  refuseOtherVersion(directory)
  const connection = { host: directory, user: USER, database: DATABASE }
  const launched = await oneAtATime(stateDirectory, async () =>
    // up: the server of an imds-api that was killed or, for a command, that runs
    (await isUp(connection)) ? undefined : launchServer(stateDirectory, connection),
  )
  const lock = await takeLock(connection, shared ? 0 : LOCK_TIMEOUT_MS).catch((error: unknown) => {
    throw wasStopped(stateDirectory, error)
  })
  if (lock === undefined) {
    if (shared) return { connection, ended: Promise.withResolvers<never>().promise, stop: () => Promise.resolve() }
    throw new StartFailure(`another imds-api uses ${stateDirectory}: stop it, or choose another IMDS_API_STATE_DIR`)
  }
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

function refuseOtherOwner(stateDirectory: string): void {
  const owner = otherOwnerOf(stateDirectory)
  if (owner === undefined) return
  const [uid, gid] = [String(owner.uid), String(owner.gid)]
  throw new StartFailure(
    `${stateDirectory} belongs to the user with the id ${uid}: run imds-api as that user, not as root ` +
      `(systemctl start imds-api, or setpriv --reuid=${uid} --regid=${gid} --clear-groups imds-api)`,
  )
}

/** Refuses a database of another major version, which our programs cannot read. */
function refuseOtherVersion(directory: string): void {
  const theirs = readOwned(directory, 'data/PG_VERSION')?.trim()
  const ours = majorVersion()
  if (theirs === undefined || theirs === ours) return
  const data = join(directory, 'data')
  throw new StartFailure(
    `${data} is a database of PostgreSQL ${theirs}, and this version of imds-api brings PostgreSQL ${ours}. ` +
      `Keep it with PostgreSQL ${theirs} of your own (IMDS_API_DATABASE), or move ${data} away and begin anew`,
  )
}

/** Returns the connection that holds the lock; undefined: an imds-api that is alive holds it. */
async function takeLock(connection: Connection, timeoutMs: number): Promise<pg.Client | undefined> {
  const client = new pg.Client({ ...connection })
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
