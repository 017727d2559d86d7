/**
 * imds-api on a database of its own: inside the process of a test (`anApi`), or as a child process (`startImdsApi`).
 * Both end with the test.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type ControlledTransaction, type Selectable, sql, type UpdateObject } from 'kysely'
import type pg from 'pg'
import { pino } from 'pino'
import type { Test } from 'tap'
import { listenForEvents } from '../../../src/imds-api/service/background.ts'
import { buildApiServer, buildAuth, type Auth } from '../../../src/imds-api/service/rest.ts'
import type { RegionIssuer } from '../../../src/imds-api/auth/region-issuer.ts'
import { digest } from '../../../src/imds-api/auth/secrets.ts'
import { AccountChanges } from '../../../src/imds-api/changes/account-changes.ts'
import type { ComputeMode } from '../../../src/imds-api/changes/actions.ts'
import { migrate } from '../../../src/imds-api/database/migrate.ts'
import { openDatabase, type Database } from '../../../src/imds-api/database/open.ts'
import { type Db, inTransaction, type Tx } from '../../../src/imds-api/database/transaction.ts'
import type { Tables } from '../../../src/imds-api/database/tables.ts'
import { DatabaseReport } from '../../../src/imds-api/http/database-errors.ts'
import { MAX_BATCH_SERVERS, OutboxPublisher } from '../../../src/imds-api/publish/outbox-publisher.ts'
import type { ReadReports } from '../../../src/imds-api/resources/kit/parts.ts'
import { Waits } from '../../../src/imds-api/resources/kit/waits.ts'
import { applyRegion } from '../../../src/imds-api/region/apply.ts'
import { parseRegion } from '../../../src/imds-api/region/parse.ts'
import type { RemovedKeys } from '../../../src/imds-api/region/removed.ts'
import type { RegionFile } from '../../../src/imds-api/region/schema.ts'
import { loadSecrets } from '../../../src/imds-api/region/secrets.ts'
import type { ApiServer } from '../../../src/imds-api/http/server.ts'
import { openStore, type Publisher } from '../../../src/store/open.ts'
import type { StoreSettings } from '../../../src/store/settings.ts'
import { APPLICATION, aRegion, CLIENT_OF, ONE, secretOf, secretTextOf } from '../fixtures/region.ts'
import { BASE_URL } from '../fixtures/representations.ts'
import { withoutDetails } from '../error-bodies.ts'
import { checkResponses } from '../openapi-validator.ts'
import { freePort } from '../redis/redis.ts'
import { type LogLine, until } from './daemon.ts'
import { IMDS_API, programEnvironment } from './imds.ts'
import { shortDirectory } from '../test-directory.ts'
import { makeDatabase, startOwnPostgres } from './shared-postgres.ts'

/** Sets columns of the row with this id. */
export async function setRow<Table extends keyof Tables>(
  db: Db,
  table: Table,
  id: string,
  values: UpdateObject<Tables, Table>,
): Promise<void> {
  await db
    .updateTable(table as 'servers')
    .set(values as object)
    .where('id', '=', id)
    .execute()
}

/** The row with this id. */
export async function rowOf<Table extends keyof Tables>(
  db: Db,
  table: Table,
  id: string,
): Promise<Selectable<Tables[Table]>> {
  const rows = db
    .selectFrom(table as 'servers')
    .selectAll()
    .where('id', '=', id)
  return (await rows.executeTakeFirstOrThrow()) as unknown as Selectable<Tables[Table]>
}

/** Opens a database by its URL. `isCommand`: what it changes, an operator changes. */
export function openUrl(url: string, isCommand = false): Promise<Database> {
  return openDatabase({ url }, isCommand, (error) => {
    throw error
  })
}

/** Opens the database of an imds-api, for other processes. */
export function openDatabaseOf({ IMDS_API_DATABASE: url = '' }: Readonly<Record<string, string>>): Promise<Database> {
  return openUrl(url, true)
}

/** The methods of the interface. */
export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE' | 'PATCH' | 'HEAD'

/** A response: its status, headers and JSON. */
export interface ApiAnswer {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly body: unknown
}

/** An audit line. */
export type AuditLine = Readonly<Record<string, unknown>>

/** The API inside the process of a test. */
export interface TestApi {
  readonly server: ApiServer
  readonly database: Database
  readonly accounts: AccountChanges
  readonly auth: Auth
  readonly waits: Waits
  /** The URL of its database. */
  readonly url: string
  /** A temporary directory, with the store in it. */
  readonly directory: string
  /** The audit lines until now. */
  readonly audit: readonly AuditLine[]
  /** Gets an access token for a client. Default: with the secret of `secretOf`, and all scopes. */
  token(client: string, options?: { readonly secret?: string; readonly scope?: string }): Promise<string>
  /** Gets an access token for a user, as if the user had signed in with the application APPLICATION. */
  userToken(user: string, scopes?: readonly string[]): Promise<string>
  /** Sends a request with JSON and an access token. `body` undefined: the request has no body. */
  callWith(token: string, method: Method, url: string, body?: unknown): Promise<ApiAnswer>
  /**
   * Sends a request with JSON in the name of an account (ONE unless another is named). `body` undefined: the request
   * has no body.
   */
  call(method: Method, url: string, body?: unknown, account?: keyof typeof CLIENT_OF): Promise<ApiAnswer>
  /**
   * Makes a request while a transaction is open, and commits only when the request waits for it (or was answered, which
   * it must not be).
   */
  during<T>(change: (tx: Tx) => Promise<unknown>, request: () => Promise<T>): Promise<T>
  /** Starts a publisher to a directory of files (or to `store`), which stops with the test. Returns the store. */
  startPublisher(store?: Publisher): Promise<Publisher>
  /** Waits until nothing is left to publish. */
  drained(): Promise<void>
}

/**
 * Options of `anApi`. `region`: the region file. `accessTokenSeconds`: default 7200. `compute`: default none. `now`:
 * the clock of tokens, default the real one. `store`: what is configured, default plain records. `reports`: those of
 * guests, default none. `ownServer`: its PostgreSQL is not shared with other tests.
 */
export interface ApiOptions {
  readonly region?: RegionFile
  readonly accessTokenSeconds?: number
  readonly compute?: ComputeMode
  readonly store?: StoreSettings
  readonly issuer?: RegionIssuer
  readonly now?: () => number
  readonly reports?: ReadReports
  readonly ownServer?: boolean
}

const nothing = () => undefined

/** The trusted proxy of `anApi`. */
export const PROXY = '192.0.2.250'

const LOG = pino({ level: 'fatal' })

/** Builds the API on a database that has a region. No change wakes its waits. */
export async function serveDatabase(
  t: Test,
  database: Database,
  {
    accessTokenSeconds = 7200,
    compute = 'none',
    issuer,
    now = () => Date.now(),
    store = { url: 'file:/store' },
    reports = () => Promise.resolve(undefined),
  }: Omit<ApiOptions, 'region' | 'ownServer'> = {},
): Promise<Pick<TestApi, 'server' | 'accounts' | 'auth' | 'waits' | 'audit'>> {
  const auth = buildAuth(
    database.db,
    { baseUrl: BASE_URL, accessTokenSeconds, refreshTokenSeconds: 2_592_000 },
    issuer,
    now,
  )
  const audit: AuditLine[] = []
  const noteAudit = (line: AuditLine) => audit.push(JSON.parse(JSON.stringify(line)) as AuditLine)
  const accounts = new AccountChanges(database.db, database.pool.options.max)
  const waits = new Waits(1_000)
  const config = {
    baseUrl: BASE_URL,
    tls: undefined,
    trustedProxies: [PROXY],
    compute,
    store,
  }
  const server = await buildApiServer({
    ...{ config, database, accounts, auth, reports, waits, audit: noteAudit, log: LOG },
    ...{ onUnreadable: nothing, onShed: nothing, databaseReport: new DatabaseReport(LOG) },
  })
  t.teardown(() => server.close())
  return { server, accounts, auth, waits, audit }
}

/** Builds the API on a new database with a region. */
export async function anApi(
  t: Test,
  { region, ownServer = false, accessTokenSeconds = 7200, ...options }: ApiOptions = {},
): Promise<TestApi> {
  const url = await databaseWith(t, region, ownServer ? (await startOwnPostgres(t)).url : undefined)
  const directory = shortDirectory(t, 0o711)
  const database = await openUrl(url)
  t.teardown(() => database.close())
  const { server, accounts, auth, waits, audit } = await serveDatabase(t, database, {
    accessTokenSeconds,
    ...options,
  })
  const notifications = listenForEvents({ database, waits })
  notifications.start()
  t.teardown(() => notifications.stop())
  checkResponses(server)
  const token: TestApi['token'] = async (client, { secret, scope } = {}) => {
    const { statusCode, body } = await server.inject({
      method: 'POST',
      url: '/token',
      headers: { authorization: basic(client, secret) },
      payload: { grant_type: 'client_credentials', ...(scope !== undefined && { scope }) },
    })
    if (statusCode !== 200) throw new Error(`${client} gets no token: ${body}`)
    return (JSON.parse(body) as { access_token: string }).access_token
  }
  const callWith: TestApi['callWith'] = async (bearer, method, url, body) => {
    const {
      statusCode,
      headers,
      body: text,
    } = await server.inject({
      method,
      url,
      headers: { authorization: `Bearer ${bearer}` },
      ...(body !== undefined && { payload: body as object }),
    })
    return { status: statusCode, headers, body: text === '' ? undefined : withoutDetails(JSON.parse(text)) }
  }
  const tokens = new Map<string, Promise<string>>()
  return {
    server,
    database,
    accounts,
    auth,
    waits,
    url,
    directory,
    audit,
    token,
    callWith,
    userToken: async (user, scopes = ['infrastructure', 'orbit']) => {
      const { db } = database
      await db
        .insertInto('applications')
        .values({
          id: APPLICATION,
          account_id: ONE,
          name: 'Dashboard',
          description: '',
          secret_sha256: digest(secretOf(APPLICATION)),
        })
        .onConflict((conflict) => conflict.doNothing())
        .execute()
      const { id: familyId } = await db
        .insertInto('token_families')
        .values({ application_id: APPLICATION, user_id: user, scopes: [...scopes] })
        .returning('id')
        .executeTakeFirstOrThrow()
      return db.transaction().execute((tx) => auth.tokens.issue(tx, { familyId }, scopes, accessTokenSeconds))
    },
    call: async (method, url, body, account = ONE) => {
      const client = CLIENT_OF[account]
      if (!tokens.has(client)) tokens.set(client, token(client))
      return callWith(await tokens.get(client)!, method, url, body)
    },
    during: async (change, request) => {
      const transaction = await openTransaction(database.db)
      await change(transaction)
      let isAnswered = false
      const answer = request().finally(() => {
        isAnswered = true
      })
      answer.catch(() => {
        // it may be refused before the commit has returned; the caller gets the refusal then
      })
      await until(async () => isAnswered || (await countOfLockWaits(database.pool)) > 0, 'the request to wait')
      await transaction.commit().execute()
      return answer
    },
    startPublisher: async (given) => {
      const files = join(directory, 'store')
      mkdirSync(files, { recursive: true })
      const store = given ?? (await openStore({ url: `file:${files}` }))
      if (given === undefined) t.teardown(() => store.close())
      const publisher = new OutboxPublisher({
        db: database.background.db,
        connect: () => database.connect(),
        openStore: () =>
          store.initialise().then(() => ({ store, history: 'files', isBehind: false, noteOrder: () => undefined })),
        batchSize: MAX_BATCH_SERVERS,
        count: nothing,
        countBatch: nothing,
        databaseReport: new DatabaseReport(LOG),
        log: LOG,
      })
      publisher.start()
      t.teardown(() => publisher.stop())
      return store
    },
    drained: () =>
      until(
        async () => (await database.db.selectFrom('outbox').select('id').execute()).length === 0,
        'the outbox to be empty',
      ),
  }
}

/** Fills a database, or a new one of the shared server, with a region. Returns its URL. */
async function databaseWith(t: Pick<Test, 'teardown'>, region?: RegionFile, given?: string): Promise<string> {
  if (given === undefined && region === undefined) return makeDatabase(t, 'region')
  const url = given ?? (await makeDatabase(t, 'tables'))
  await fillDatabase(url, region ?? aRegion())
  return url
}

/** Makes the tables of a database, with a region or without. */
export async function fillDatabase(url: string, region?: RegionFile): Promise<void> {
  const database = await openUrl(url)
  await migrate(database.db)
  if (region !== undefined) await apply(database, region)
  await database.close()
}

/** Begins a transaction that may stay idle: PostgreSQL ends an idle one of a request after seconds. */
export async function openTransaction(db: Db): Promise<ControlledTransaction<Tables>> {
  const transaction = await db.startTransaction().execute()
  await sql`set local idle_in_transaction_session_timeout = 0`.execute(transaction)
  return transaction
}

/** How many connections to this database wait for a lock. */
export async function countOfLockWaits(client: Pick<pg.Client, 'query'> | Database['pool']): Promise<number> {
  const { rowCount } = await client.query(
    "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
  )
  return rowCount!
}

/** Applies a region file, and removes the rows with these keys. Its secrets are those of `secretTextOf`. */
export async function apply(
  { db }: Pick<Database, 'db'>,
  region: RegionFile,
  removed: RemovedKeys = {},
): Promise<readonly string[]> {
  const parsed = await parseRegion(JSON.stringify(region))
  if (!parsed.ok) throw new Error(parsed.faults.join('; '))
  const secrets = loadSecrets(region, secretTextOf)
  if (!secrets.ok) throw new Error(secrets.faults.join('; '))
  return inTransaction(db, async (tx) => {
    // the command has no such limits, and hashes passwords meanwhile
    await sql`set local statement_timeout to 0`.execute(tx)
    await sql`set local idle_in_transaction_session_timeout to 0`.execute(tx)
    return applyRegion(tx, { file: parsed.value.file, removed }, secrets.value)
  })
}

/** The Authorization header of a client. */
export function basic(client: string, secret = secretOf(client)): string {
  return `Basic ${Buffer.from(`${client}:${secret}`).toString('base64')}`
}

/** imds-api as a process. */
export interface TestImdsApi {
  readonly process: ChildProcess
  readonly baseUrl: string
  readonly operatorUrl: string
  readonly log: readonly LogLine[]
  /** The environment that it was started with, for another process with the same database. */
  readonly env: Readonly<Record<string, string>>
  /** Gets an access token for a client, whose secret is that of `secretOf`. */
  token(client: string): Promise<string>
  /** Sends a request below /1.0/ in the name of ONE. `body` undefined: the request has no body. */
  call(method: Method, path: string, body?: object): Promise<Pick<ApiAnswer, 'status' | 'body'>>
  /** Reads the metrics. */
  metrics(): Promise<string>
  /** Sends SIGTERM and waits for the end. Returns the exit status. */
  stop(): Promise<number | null>
}

/**
 * Starts imds-api on free ports of 127.0.0.1, with a database that has a region, and a directory of files as its store.
 * `env` adds to its environment and overrides. `stderr`: a file descriptor.
 * `wrapper`: a command that starts it, such as prlimit. Resolves when it listens; the test stops it.
 */
export async function startImdsApi(
  t: Pick<Test, 'teardown'>,
  env: Readonly<Record<string, string>> = {},
  region?: RegionFile,
  stderr: number | 'inherit' = 'inherit',
  wrapper: readonly string[] = [],
): Promise<TestImdsApi> {
  const directory = shortDirectory(t, 0o711)
  mkdirSync(join(directory, 'store'))
  const listen = `127.0.0.1:${await freePort()}`
  const full = {
    IMDS_API_LISTEN: listen,
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
    IMDS_STORE: `file:${join(directory, 'store')}`,
    ...env,
    IMDS_API_DATABASE: await databaseWith(t, region, env['IMDS_API_DATABASE']),
  }
  return startProcess(t, full, stderr, wrapper)
}

type SecretFiles = Readonly<Partial<Record<'secret_file' | 'password_file' | 'totp_secret_file', string>>>

/** Writes a region file and the files of its secrets into a directory. Returns its path. */
export function writeRegion(directory: string, region: RegionFile = aRegion()): string {
  const file = join(directory, 'region.yaml')
  writeFileSync(file, JSON.stringify(region))
  for (const { secret_file, password_file, totp_secret_file } of [
    ...region.api_clients,
    ...(region.applications ?? []),
    ...region.users,
  ] as SecretFiles[]) {
    for (const name of [secret_file, password_file, totp_secret_file])
      if (name !== undefined) writeFileSync(join(directory, name), `${secretTextOf(name)}\n`)
  }
  return file
}

/** Starts imds-api with an environment, on a database that has its region. */
export async function startProcess(
  t: Pick<Test, 'teardown'>,
  env: Readonly<Record<string, string>>,
  stderr: number | 'inherit' = 'inherit',
  wrapper: readonly string[] = [],
): Promise<TestImdsApi> {
  const command = [...wrapper, process.execPath, IMDS_API]
  const child = spawn(command[0]!, command.slice(1), {
    env: { ...programEnvironment(), ...env },
    stdio: ['ignore', 'pipe', stderr],
  })
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) {
      child.kill('SIGTERM')
      await once(child, 'exit')
    }
    return child.exitCode
  }
  t.teardown(stop)
  const log: LogLine[] = []
  createInterface({ input: child.stdout! }).on('line', (line) => log.push(JSON.parse(line) as LogLine))
  await until(() => log.some(({ msg }) => msg === 'listening') || child.exitCode !== null, 'imds-api to listen')
  const listening = log.find(({ msg }) => msg === 'listening')
  if (listening === undefined) throw new Error(`imds-api did not start: ${JSON.stringify(log)}`)
  const baseUrl = `${env['IMDS_API_TLS_CERT_FILE'] === undefined ? 'http' : 'https'}://${(listening['listening'] as string[])[0]!}`
  const operatorUrl = `http://${listening['operator'] as string}`
  const token = async (client: string) => {
    const response = await fetch(`${baseUrl}/token`, {
      method: 'POST',
      headers: { authorization: basic(client) },
      body: new URLSearchParams({ grant_type: 'client_credentials' }),
    })
    if (!response.ok) throw new Error(`${client} gets no token: ${await response.text()}`)
    return ((await response.json()) as { access_token: string }).access_token
  }
  let ofOne: Promise<string> | undefined
  return {
    process: child,
    log,
    env,
    stop,
    baseUrl,
    operatorUrl,
    token,
    call: async (method, path, body) => {
      ofOne ??= token(CLIENT_OF[ONE])
      const response = await fetch(`${baseUrl}/1.0/${path}`, {
        method,
        headers: {
          authorization: `Bearer ${await ofOne}`,
          ...(body !== undefined && { 'content-type': 'application/json' }),
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      })
      return { status: response.status, body: await response.json() }
    },
    metrics: async () => (await fetch(`${operatorUrl}/metrics`)).text(),
  }
}
