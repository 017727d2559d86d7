/**
 * The embedded PostgreSQL: a server of our own, in our state directory, on a unix socket that only we can open.
 *
 *   STATE/postgres/data     the database, made by initdb at the first start
 *   STATE/postgres/.s.PGSQL.5432, STATE/postgres/log
 *   STATE/server.lock       held by the process that has started the server: an imds-api, or a command
 *   STATE/command.lock      held by a command until it ends, so that commands take turns
 *
 * The server is a child of the process that has started it, and ends with it, however it ends (launch.ts). A command
 * joins the server of a running imds-api.
 *
 * A process of root works only in a state directory of root (runtime/become-owner.ts). There STATE/postgres belongs to
 * the user who runs PostgreSQL, and only processes of that user create, replace or delete anything in it.
 */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { otherOwnerOf } from '../../runtime/become-owner.ts'
import { MAX_UNIX_SOCKET_PATH_BYTES } from '../../runtime/host-port.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { LockHeld, takeLock, type Lock } from '../../runtime/kernel-lock.ts'
import { majorVersion } from './binaries.ts'
import { launchServer, probe, readOwned, START_TIMEOUT_MS, stopLaunched, type ServerSocket } from './launch.ts'

export interface EmbeddedServer {
  readonly connection: ServerSocket
  /** Resolves when the server has ended without our doing. */
  readonly ended: Promise<void>
  stop(): Promise<void>
}

const USER = 'imds'
const DATABASE = 'postgres'
/** How long a command waits for another one. */
const COMMAND_TIMEOUT_MS = 60_000
/** How long an imds-api waits for a command that has the server. */
const LOCK_TIMEOUT_MS = 3_000
const POLL_MS = 20
/** In bytes. PostgreSQL makes its socket, and a lock file for the socket, in this directory. */
const MAX_DIRECTORY_BYTES = MAX_UNIX_SOCKET_PATH_BYTES - '/.s.PGSQL.5432.lock'.length

/** The failure of a command that joined the PostgreSQL server of an imds-api, which then stopped. */
export function wasStopped(stateDirectory: string, cause: unknown): StartFailure {
  return new StartFailure(
    `the PostgreSQL server in ${stateDirectory} was stopped by its imds-api: run this command again`,
    { cause },
  )
}

/** True if the database has been made. It is made as a whole or not at all. */
export function embeddedExists(stateDirectory: string): boolean {
  return existsSync(join(stateDirectory, 'postgres/data'))
}

/**
 * Starts the server. With `shared`, for a command, it may also join the server of a running imds-api, and leaves it
 * running; commands take turns. Rejects with a message that names the remedy, and leaves nothing running then.
 */
export async function startEmbedded(stateDirectory: string, shared: boolean): Promise<EmbeddedServer> {
  const directory = join(stateDirectory, 'postgres')
  if (Buffer.byteLength(directory) > MAX_DIRECTORY_BYTES)
    throw new StartFailure(
      `the path of a unix socket would be too long: choose a shorter IMDS_API_STATE_DIR than ${stateDirectory}`,
    )
  refuseOtherOwner(stateDirectory)
  mkdirSync(stateDirectory, { recursive: true, mode: 0o711 })
  if (!shared) return startOrJoin(stateDirectory, directory, false)
  const turn = await takeLock(join(stateDirectory, 'command.lock'), COMMAND_TIMEOUT_MS).catch((error: unknown) => {
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
  const lock = await lockOrJoin(stateDirectory, connection, shared)
  if (lock === undefined)
    return { connection, ended: Promise.withResolvers<never>().promise, stop: () => Promise.resolve() }
  const launched = await launchServer(stateDirectory, connection).catch((error: unknown) => {
    lock.close()
    throw error
  })
  let stopping = false
  const ended = launched.exited.then(() => (stopping ? Promise.withResolvers<never>().promise : undefined))
  return {
    connection,
    ended,
    stop: async () => {
      stopping = true
      await stopLaunched(launched)
      lock.close()
    },
  }
}

/**
 * Returns the lock of the server, once the server of a process that was killed has ended; undefined: a running imds-api
 * has the lock, and its server accepts connections.
 */
async function lockOrJoin(
  stateDirectory: string,
  connection: ServerSocket,
  shared: boolean,
): Promise<Lock | undefined> {
  const startedMs = performance.now()
  for (;;) {
    const lock = await takeLock(join(stateDirectory, 'server.lock'), 0).catch((error: unknown) => {
      if (error instanceof LockHeld) return undefined
      throw new StartFailure(`cannot start PostgreSQL in ${stateDirectory}: ${(error as Error).message}`, {
        cause: error,
      })
    })
    const state = await probe(connection)
    if (lock !== undefined && state === 'away') return lock
    lock?.close()
    if (lock === undefined && state === 'up') {
      if (shared) return undefined
      if (performance.now() > startedMs + LOCK_TIMEOUT_MS)
        throw new StartFailure(`another imds-api uses ${stateDirectory}: stop it, or choose another IMDS_API_STATE_DIR`)
    }
    if (performance.now() > startedMs + START_TIMEOUT_MS)
      throw new StartFailure(`another process starts or stops PostgreSQL in ${stateDirectory}: start again`)
    await sleep(POLL_MS)
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
