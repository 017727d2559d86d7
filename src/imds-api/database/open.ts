/** Opens the database: the embedded one, or a server by its URL. */
import type { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { Kysely, PostgresDialect } from 'kysely'
import pg, { TypeOverrides } from 'pg'
import { parseIntoClientConfig } from 'pg-connection-string'
import { StartFailure } from '../../runtime/listen.ts'
import { readSecretFile } from '../../runtime/secret-file.ts'
import { startEmbedded } from './embedded.ts'
import { DEFAULT_CONNECTIONS, type DatabaseSettings } from './settings.ts'
import type { Tables } from './tables.ts'
import type { Db } from './transaction.ts'

/** Connections of a pool, as queries use them. */
export interface DatabasePool {
  readonly db: Db
  readonly pool: pg.Pool
}

/**
 * An open database: the connections for requests, and in `background` those for everything else, such as publishing and
 * readiness, so that these do not wait for requests. A statement of `migrations` may take any time.
 */
export interface Database extends DatabasePool {
  readonly background: DatabasePool
  readonly migrations: DatabasePool
  /** Opens a connection outside of the pools. */
  connect(): Promise<pg.Client>
  /** Resolves when an embedded server has ended without our doing. */
  readonly ended: Promise<void>
  close(): Promise<void>
}

/**
 * A connection of the pool. TypeScript's types of pg leave out that its stream is a socket, and `readyForQuery`: true
 * while no query waits.
 */
type Connected = pg.PoolClient &
  pg.Client & {
    readonly connection: EventEmitter & { readonly stream: Pick<Socket, 'setTimeout' | 'on' | 'destroy'> }
    readonly readyForQuery: boolean
  }

/**
 * The most connections for the rest: one for each worker of the publisher and for the sender of mail, and some for the
 * short queries of the others.
 */
const MAX_BACKGROUND_CONNECTIONS = 8
/**
 * A request that waits 5 s for a connection is refused. TCP's keep-alive notices when the network has lost a connection
 * that listens for notifications.
 */
const LIVENESS = { connectionTimeoutMillis: 5_000, keepAlive: true, keepAliveInitialDelayMillis: 10_000 }
/**
 * A connection counts as lost if nothing arrives on it for this long while a query waits. The pool closes idle
 * connections earlier.
 */
const SILENCE_TIMEOUT_MS = 30_000
/** A stop waits this long for transactions. One that waits for the store is rolled back. */
const CLOSE_TIMEOUT_MS = 1_000
/**
 * PostgreSQL ends a transaction that has waited this long for its process, so that a process that was stopped, or whose
 * machine is lost, does not keep its locks.
 */
const IDLE_TRANSACTION = ['idle_in_transaction_session_timeout', '60s'] as const
/** The same for a command, which may hash passwords or read the store meanwhile. */
const IDLE_COMMAND = ['idle_in_transaction_session_timeout', '1h'] as const
/** PostgreSQL ends a statement of a request that takes longer: the request is refused. */
const REQUEST_STATEMENT = ['statement_timeout', '10s'] as const
/** PostgreSQL ends the wait of a migration for a lock, also if its process has gone meanwhile. */
const LOCK_WAIT = ['lock_timeout', '10s'] as const
/**
 * Sets limits. A limit of the administrator is left as it is. A statement, because pgBouncer refuses such settings as
 * startup parameters.
 */
const SET_LIMITS = `
  select set_config(name, value, false) from unnest($1::text[], $2::text[]) as limits (name, value)
  where current_setting(name) = '0'`
/** PostgreSQL's code for a change on a standby, or with default_transaction_read_only. */
const READ_ONLY = '25006'
const OLDEST_POSTGRESQL = 15
const VERSION = "select current_setting('server_version_num')::int / 10000 as version"

/**
 * Opens the database and its pools. Rejects if it cannot be reached; the message names the remedy. `isCommand`: for a
 * command, whose queries may take long. `onBroken` is called when an idle connection breaks.
 */
export async function openDatabase(
  settings: DatabaseSettings,
  isCommand: boolean,
  onBroken: (error: Error) => void,
): Promise<Database> {
  const server = settings.kind === 'embedded' ? await startEmbedded(settings.stateDirectory) : undefined
  const address = settings.kind === 'server' ? connectionTo(settings) : server!.connection
  const connection = { ...address, ...LIVENESS, ...(isCommand && actingAsOperator(address)) }
  // Our bigints (revisions, row numbers) stay below 2^53.
  const types = new TypeOverrides()
  types.setTypeParser(pg.types.builtins.INT8, Number)
  let closing = false
  const readOnly = new WeakSet<pg.PoolClient>()
  const openPool = (
    max: number,
    mayBeSilent: boolean,
    ...limitsOfService: readonly (readonly [name: string, value: string])[]
  ): DatabasePool => {
    const options = { ...connection, max, types, application_name: 'imds-api' }
    const limits = isCommand ? [IDLE_COMMAND] : limitsOfService
    const values = [limits.map(([name]) => name), limits.map(([, value]) => value)]
    // the pool waits for the promise, which its types leave out
    const onConnect = (client: pg.ClientBase): unknown => client.query(SET_LIMITS, values)
    const pool = new pg.Pool({ ...options, onConnect })
    pool.on('error', (error) => {
      if (!closing) onBroken(error)
    })
    pool.on('connect', (client) => {
      client.on('error', reportedByQuery)
      if (!mayBeSilent) endWhenSilent(client as Connected)
      ;(client as Connected).connection.on('errorMessage', ({ code }: { readonly code?: string }) => {
        if (code === READ_ONLY) readOnly.add(client)
      })
    })
    pool.on('release', (_error, client) => {
      // another connection may reach the primary; the pool removes all that are ending
      if (readOnly.has(client)) void (client as Connected).end()
    })
    return { pool, db: new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) }) }
  }
  const connections = settings.connections ?? DEFAULT_CONNECTIONS
  const { db, pool } = openPool(connections, isCommand, IDLE_TRANSACTION, REQUEST_STATEMENT)
  const background = openPool(MAX_BACKGROUND_CONNECTIONS, isCommand, IDLE_TRANSACTION)
  const migrations = openPool(1, true, IDLE_TRANSACTION, LOCK_WAIT)
  const close = async () => {
    closing = true
    await Promise.race([
      Promise.all([pool, background.pool, migrations.pool].map((one) => one.end())),
      sleep(CLOSE_TIMEOUT_MS, undefined, { ref: false }),
    ])
    await server?.stop()
  }
  try {
    await checkServer(pool)
  } catch (error) {
    await close()
    throw error
  }
  const ended = server?.ended ?? Promise.withResolvers<never>().promise
  const connect = async () => {
    const client = new pg.Client(connection)
    client.on('error', reportedByQuery)
    await client.connect()
    return client
  }
  return { db, pool, background, migrations, connect, close, ended }
}

/** An error without a listener ends the process. The query of the connection, or its `end` event, tells of it. */
const reportedByQuery = () => undefined

/** Names the operator in the events of a command (event-triggers.ts). */
function actingAsOperator({ options }: pg.ClientConfig): pg.ClientConfig {
  return { options: [options, '-c imds.actor=operator'].filter((one) => one !== undefined).join(' ') }
}

/** Rejects if the server cannot be reached, or is too old. */
async function checkServer(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query<{ version: number }>(VERSION).catch((error: unknown) => {
    const { message } = error as Error
    // pg asks for a password when PostgreSQL does
    const reason = message.endsWith('client password must be a string')
      ? 'PostgreSQL requires a password, and IMDS_API_DATABASE_PASSWORD_FILE is not set'
      : message
    throw new StartFailure(`the database cannot be reached: ${reason}`, { cause: error })
  })
  const { version } = rows[0]!
  if (version < OLDEST_POSTGRESQL)
    throw new StartFailure(`the database is PostgreSQL ${version}: imds-api needs ${OLDEST_POSTGRESQL} or newer`)
}

/**
 * Ends a lost connection: the operating system notices the loss only after 15 minutes. Not for commands and
 * migrations, because one of their statements may take long.
 */
function endWhenSilent(client: Connected): void {
  const { stream } = client.connection
  stream.setTimeout(SILENCE_TIMEOUT_MS) // its second parameter would be called once only
  stream.on('timeout', () => {
    // the query gets "Connection terminated"; a transaction that waits for a mail server keeps its locks
    if (!client.readyForQuery) stream.destroy()
  })
}

/** Parses the URL. Throws if it cannot be used, for example because it names a file that cannot be read. */
function connectionTo({ url, passwordFile }: Extract<DatabaseSettings, { kind: 'server' }>): pg.ClientConfig {
  const password = passwordFile === undefined ? {} : { password: () => readSecretFile(passwordFile) }
  try {
    return { ...parseIntoClientConfig(url), ...password }
  } catch (error) {
    throw new StartFailure(`the URL of the database cannot be used: ${(error as Error).message}`, { cause: error })
  }
}
