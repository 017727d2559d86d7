/** Opens the database by its URL. */
import type { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import { Kysely, PostgresDialect } from 'kysely'
import pg, { TypeOverrides } from 'pg'
import { parseIntoClientConfig } from 'pg-connection-string'
import { waitAtMost } from '../../limits/in-time.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { readSecretFile } from '../../runtime/setting-files.ts'
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
 * A connection for requests counts as lost if nothing arrives on it for this long while a query waits; of the others,
 * the statements of the background may take longer. The pool closes idle connections earlier.
 */
const [SILENCE_TIMEOUT_MS, BACKGROUND_SILENCE_MS] = [10_000, 30_000]
/** A stop waits this long for transactions. One that waits for the store is rolled back. */
const CLOSE_TIMEOUT_MS = 1_000

type Setting = readonly [name: string, value: string]
/** What imds-api depends on, whatever the administrator has set for the database or the user. */
const SETTINGS: readonly Setting[] = [
  ['DateStyle', 'ISO'],
  ['IntervalStyle', 'postgres'],
  ['TimeZone', 'UTC'],
  ['standard_conforming_strings', 'on'],
  ['bytea_output', 'hex'],
  ['array_nulls', 'on'],
  ['extra_float_digits', '1'],
  ['default_transaction_isolation', 'read committed'],
]
/** The actor of the events of a command (migrations/0014-event-triggers.ts). */
const OPERATOR: Setting = ['imds.actor', 'operator']
/**
 * PostgreSQL ends a transaction that waits this long for its process, so that a process that was stopped, or whose
 * machine is lost, does not keep its locks. A change never waits for anything else in its transaction.
 */
const IDLE_CHANGE: Setting = ['idle_in_transaction_session_timeout', '4s']
/** A publish waits for the store meanwhile. */
const IDLE_BACKGROUND: Setting = ['idle_in_transaction_session_timeout', '15s']
/** A command may hash passwords or read the store meanwhile. */
const IDLE_COMMAND: Setting = ['idle_in_transaction_session_timeout', '1h']
/**
 * PostgreSQL ends a statement of a request that takes longer: the request is refused. It is longer than IDLE_CHANGE, so
 * what waits for a stopped process goes on after that, and shorter than SILENCE_TIMEOUT_MS.
 */
const REQUEST_STATEMENT: Setting = ['statement_timeout', '8s']
/** PostgreSQL ends the wait of a migration for a lock, also if its process has gone meanwhile. */
const LOCK_WAIT: Setting = ['lock_timeout', '10s']
/** PostgreSQL ends a session whose process takes no results, in ms. Without, it would wait in the middle of a statement. */
const UNREAD_RESULTS: Setting = ['tcp_user_timeout', '10000']
/**
 * Sets a connection up. A limit of the administrator is left as it is. A statement, because pgBouncer refuses such
 * settings as startup parameters.
 */
const SET_UP = `
  select set_config(name, value, false) from unnest($1::text[], $2::text[]) as settings (name, value)
  where name not like '%_timeout' or current_setting(name, true) = '0'`
/** PostgreSQL's code for a change on a standby, or with default_transaction_read_only. */
const READ_ONLY = '25006'
const OLDEST_POSTGRESQL = 15
const SERVER = `
  select current_setting('server_version_num')::int / 10000 as version,
    current_setting('server_encoding') as encoding, pg_backend_pid() as session`

/**
 * Opens the database and its pools. Rejects if it cannot be reached; the message names the remedy. `isCommand`: for a
 * command, whose queries may take long. `onBroken` is called when an idle connection breaks.
 */
export async function openDatabase(
  settings: DatabaseSettings,
  isCommand: boolean,
  onBroken: (error: Error) => void,
): Promise<Database> {
  const connection = { ...connectionTo(settings), ...LIVENESS }
  // Our bigints (revisions, row numbers) stay below 2^53.
  const types = new TypeOverrides()
  types.setTypeParser(pg.types.builtins.INT8, Number)
  let closing = false
  const readOnly = new WeakSet<pg.PoolClient>()
  const openPool = (max: number, silenceMs: number | undefined, ...limits: readonly Setting[]): DatabasePool => {
    const options = { ...connection, max, types, application_name: 'imds-api' }
    const settings = [...SETTINGS, ...(isCommand ? [OPERATOR, IDLE_COMMAND] : [...limits, UNREAD_RESULTS])]
    const values = [settings.map(([name]) => name), settings.map(([, value]) => value)]
    // the pool waits for the promise, which its types leave out
    const onConnect = (client: pg.ClientBase): unknown => client.query(SET_UP, values)
    const pool = new pg.Pool({ ...options, onConnect })
    pool.on('error', (error) => {
      if (!closing) onBroken(error)
    })
    pool.on('connect', (client) => {
      client.on('error', reportedByQuery)
      if (silenceMs !== undefined && !isCommand) endWhenSilent(client as Connected, silenceMs)
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
  const { db, pool } = openPool(connections, SILENCE_TIMEOUT_MS, IDLE_CHANGE, REQUEST_STATEMENT)
  const background = openPool(MAX_BACKGROUND_CONNECTIONS, BACKGROUND_SILENCE_MS, IDLE_BACKGROUND)
  const migrations = openPool(1, undefined, IDLE_BACKGROUND, LOCK_WAIT)
  const close = async () => {
    closing = true
    await waitAtMost(Promise.all([pool, background.pool, migrations.pool].map((one) => one.end())), CLOSE_TIMEOUT_MS)
  }
  try {
    await checkServer(pool, background.pool)
  } catch (error) {
    await close()
    throw error
  }
  const connect = async () => {
    const client = new pg.Client(connection)
    client.on('error', reportedByQuery)
    await client.connect()
    return client
  }
  return { db, pool, background, migrations, connect, close }
}

/** An error without a listener ends the process. The query of the connection, or its `end` event, tells of it. */
const reportedByQuery = () => undefined

/** Rejects if the server cannot be reached, is too old, or has a database that imds-api cannot use. */
async function checkServer(...pools: readonly [pg.Pool, pg.Pool]): Promise<void> {
  const clients: pg.PoolClient[] = []
  try {
    for (const pool of pools) clients.push(await pool.connect())
    const servers = []
    for (const client of [...clients, clients[0]!]) servers.push(await readServer(client))
    const [{ version, encoding, session }, other, again] = servers as [ServerFacts, ServerFacts, ServerFacts]
    if (version < OLDEST_POSTGRESQL)
      throw new StartFailure(`the database is PostgreSQL ${version}: imds-api needs ${OLDEST_POSTGRESQL} or newer`)
    if (encoding !== 'UTF8')
      throw new StartFailure(
        `the encoding of the database is ${encoding}, which cannot store every name: ` +
          "create one with the encoding UTF8 (create database ... encoding 'UTF8' template template0)",
      )
    if (session === other.session || session !== again.session)
      throw new StartFailure(
        'two connections to the database share a session, as with pool_mode = transaction of pgBouncer: ' +
          'set pool_mode = session for this database',
      )
  } catch (error) {
    if (error instanceof StartFailure) throw error
    const { message } = error as Error
    // pg asks for a password when PostgreSQL does
    const reason = message.endsWith('client password must be a string')
      ? 'PostgreSQL requires a password, and IMDS_API_DATABASE_PASSWORD_FILE is not set'
      : message
    throw new StartFailure(`the database cannot be reached: ${reason}`, { cause: error })
  } finally {
    for (const client of clients) client.release()
  }
}

interface ServerFacts {
  readonly version: number
  readonly encoding: string
  /** The process of PostgreSQL. */
  readonly session: number
}

async function readServer(client: pg.PoolClient): Promise<ServerFacts> {
  return (await client.query<ServerFacts>(SERVER)).rows[0]!
}

/**
 * Ends a lost connection: the operating system notices the loss only after 15 minutes. Not for commands and
 * migrations, because one of their statements may take long.
 */
function endWhenSilent(client: Connected, silenceMs: number): void {
  const { stream } = client.connection
  stream.setTimeout(silenceMs) // its second parameter would be called once only
  stream.on('timeout', () => {
    // the query gets "Connection terminated"; a transaction that waits for a mail server keeps its locks
    if (!client.readyForQuery) stream.destroy()
  })
}

/** Parses the URL. Throws if it cannot be used, for example because it names a file that cannot be read. */
function connectionTo({ url, passwordFile }: DatabaseSettings): pg.ClientConfig {
  const password = passwordFile === undefined ? {} : { password: () => readSecretFile(passwordFile) }
  try {
    return { ...parseIntoClientConfig(url), ...password }
  } catch (error) {
    throw new StartFailure(`the URL of the database cannot be used: ${(error as Error).message}`, { cause: error })
  }
}
