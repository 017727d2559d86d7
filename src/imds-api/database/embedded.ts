/**
 * The embedded PostgreSQL, for a trial and for tests: a server of our own, in our state directory, on a unix socket
 * that only we can open.
 *
 *   STATE/postgres/data     the database, made by initdb at the first start
 *   STATE/postgres/.s.PGSQL.5432, STATE/postgres/log
 *   STATE/server.lock       held by the process that has started the server: an imds-api, or a command
 *
 * The server is a child of the process that has started it, and ends with it, however it ends (launch.ts). Other
 * processes can use it by its URL.
 *
 * A process of root works only in a state directory of root (runtime/other-user.ts). There STATE/postgres belongs to
 * the user who runs PostgreSQL, and only processes of that user create, replace or delete anything in it.
 */
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { otherOwnerOf } from '../../runtime/other-user.ts'
import { MAX_UNIX_SOCKET_PATH_BYTES } from '../../runtime/host-port.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { LockHeld, takeLock, type Lock } from '../../runtime/kernel-lock.ts'
import { majorVersion } from './binaries.ts'
import { launchServer, probeServer, readOwnFile, START_TIMEOUT_MS, stopLaunched, type ServerSocket } from './launch.ts'

export interface EmbeddedServer {
  readonly connection: ServerSocket
  /** Resolves when the server has ended without our doing. */
  readonly ended: Promise<void>
  stop(): Promise<void>
}

const USER = 'imds'
const DATABASE = 'postgres'
/** How long a start waits for another process that has the server, such as a command. */
const LOCK_TIMEOUT_MS = 10_000
const POLL_MS = 20
/** In bytes. PostgreSQL makes its socket, and a lock file for the socket, in this directory. */
const MAX_DIRECTORY_BYTES = MAX_UNIX_SOCKET_PATH_BYTES - '/.s.PGSQL.5432.lock'.length

/** The URL of the server while it runs, for other processes. */
export function embeddedUrl(stateDirectory: string): string {
  return `postgres://${USER}@/${DATABASE}?host=${join(stateDirectory, 'postgres')}`
}

/** True if the database has been made. It is made as a whole or not at all. */
export function embeddedExists(stateDirectory: string): boolean {
  return existsSync(join(stateDirectory, 'postgres/data'))
}

/** Starts the server. Rejects with a message that names the remedy, and leaves nothing running then. */
export async function startEmbedded(stateDirectory: string): Promise<EmbeddedServer> {
  const directory = join(stateDirectory, 'postgres')
  if (Buffer.byteLength(directory) > MAX_DIRECTORY_BYTES)
    throw new StartFailure(
      `the path of a unix socket would be too long: choose a shorter IMDS_API_STATE_DIR than ${stateDirectory}`,
    )
  refuseOtherOwner(stateDirectory)
  mkdirSync(stateDirectory, { recursive: true, mode: 0o711 })
  refuseOtherVersion(directory)
  const connection = { host: directory, user: USER, database: DATABASE }
  const lock = await lockServer(stateDirectory)
  try {
    await waitForEnd(connection)
    const launched = await launchServer(stateDirectory, connection)
    let stopping = false
    return {
      connection,
      ended: launched.exited.then(() => (stopping ? Promise.withResolvers<never>().promise : undefined)),
      stop: async () => {
        stopping = true
        await stopLaunched(launched)
        lock.close()
      },
    }
  } catch (error) {
    lock.close()
    throw error
  }
}

async function lockServer(stateDirectory: string): Promise<Lock> {
  try {
    return await takeLock(join(stateDirectory, 'server.lock'), LOCK_TIMEOUT_MS)
  } catch (error) {
    throw new StartFailure(
      error instanceof LockHeld
        ? `another imds-api uses ${stateDirectory}: stop it, or choose another IMDS_API_STATE_DIR. A command can use ` +
            `its database: IMDS_API_DATABASE=${embeddedUrl(stateDirectory)}`
        : `cannot start PostgreSQL in ${stateDirectory}: ${(error as Error).message}`,
      { cause: error },
    )
  }
}

/** Waits until the server of a process that was killed has ended. */
async function waitForEnd(connection: ServerSocket): Promise<void> {
  const deadlineMs = performance.now() + START_TIMEOUT_MS
  while ((await probeServer(connection)) !== 'away') {
    if (performance.now() > deadlineMs)
      throw new StartFailure(`a PostgreSQL server of a former imds-api does not end in ${connection.host}: end it`)
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
  const theirs = readOwnFile(directory, 'data/PG_VERSION')?.trim()
  const ours = majorVersion()
  if (theirs === undefined || theirs === ours) return
  const data = join(directory, 'data')
  throw new StartFailure(
    `${data} is a database of PostgreSQL ${theirs}, and this version of imds-api brings PostgreSQL ${ours}. ` +
      `Keep it with PostgreSQL ${theirs} of your own (IMDS_API_DATABASE), or move ${data} away and begin anew`,
  )
}
