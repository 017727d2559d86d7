/**
 * The composition root of imds-api, which serves the Brightbox-compatible API (docs/api-conformance.md), "the API" in
 * comments. It builds the parts in order and stops them in reverse. It has no rules of its own.
 */
import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { DestinationStream, Logger } from 'pino'
import { formatHostPort, formatPlace, type HostPort, type Place } from '../runtime/host-port.ts'
import { descriptors, listen, listenAt, readLimits, StartFailure } from '../runtime/listen.ts'
import { openStore } from '../store/open.ts'
import { StoreUnavailable } from '../store/publisher.ts'
import { VERSION } from '../runtime/version.ts'
import { buildAudit, openAudit, type AuditStream } from './http/audit.ts'
import { buildAccountChoice, describeClient } from './auth/account-choice.ts'
import { buildBearerCheck } from './auth/bearer.ts'
import { FailureLimit } from './auth/failure-limit.ts'
import { Grants } from './auth/grants.ts'
import { KnownAddresses } from './auth/known-addresses.ts'
import { addTokenEndpoint } from './auth/token-endpoint.ts'
import { TokenFamilies } from './auth/token-families.ts'
import { AccessTokens } from './auth/tokens.ts'
import { buildComputeServer } from './compute/server.ts'
import { Waiters } from './compute/waiters.ts'
import type { ApiConfig } from './config.ts'
import { Connections, shareConnections, shareOfAddress } from './http/connections.ts'
import { ACCOUNT_QUEUE, AccountChanges } from './changes/account-changes.ts'
import { COMPUTE_CHANNEL } from './changes/actions.ts'
import { finishWaitingActions, purgeActions } from './changes/action-queue.ts'
import { migrate } from './database/migrate.ts'
import { NotificationListener } from './database/notifications.ts'
import { openDatabase, type Database } from './database/open.ts'
import { usedHypervisors } from './changes/placement.ts'
import { FairQueue } from './http/fair-queue.ts'
import { InvitationSender } from './mail/sender.ts'
import { buildSmtp } from './mail/smtp.ts'
import { buildApiMetrics, type ApiMetrics } from './metrics.ts'
import { completeOpenApi, takesAccount } from './http/openapi.ts'
import { buildOperatorServer } from './operator.ts'
import { HypervisorCheck } from './publish/hypervisor-check.ts'
import { LazyStore } from './publish/lazy-store.ts'
import { OutboxPublisher } from './publish/outbox-publisher.ts'
import { addReadShare, READ_SHARE } from './http/read-share.ts'
import { addAccountRoutes, addChosenAccountRoute } from './resources/accounts.ts'
import { addApiClientRoutes } from './resources/api-clients.ts'
import { addApplicationRoutes } from './resources/applications.ts'
import { addCatalogRoutes } from './resources/catalog.ts'
import { addCloudIpRoutes } from './resources/cloud-ips.ts'
import { addCollaborationRoutes, addUserCollaborationRoutes } from './resources/collaborations.ts'
import { addConfigMapRoutes } from './resources/config-maps.ts'
import { addDatabaseServerRoutes } from './resources/database-servers.ts'
import { addRoutesOfOtherDocuments } from './resources/unimplemented.ts'
import { addImageRoutes } from './resources/images.ts'
import { addInterfaceRoutes } from './resources/interfaces.ts'
import { addServerActionRoutes } from './resources/server-actions.ts'
import { addServerGroupRoutes } from './resources/server-groups.ts'
import { addServerRoutes } from './resources/servers.ts'
import { CurrentSite } from './resources/site.ts'
import { addUserRoutes } from './resources/users.ts'
import { buildServer, type ApiServer, type ApiServerSettings } from './http/server.ts'
import { respectStrict } from './http/strict.ts'

/** A running imds-api. `failed` resolves with the reason when it cannot continue. */
export interface Api {
  /** In the order of the configuration. */
  readonly listening: readonly Place[]
  readonly operator: HostPort
  readonly failed: Promise<string>
  /** Opens the file of the audit lines again, after a log rotation. */
  reopenAudit(): void
  stop(): Promise<void>
}

const PURGE_INTERVAL_MS = 3_600_000
const COMPUTE_POLL_MS = 2_000
const CLOSE_TIMEOUT_MS = 5_000
/** How long a stop waits for the store to close: its connection may still be opening. */
const STORE_CLOSE_TIMEOUT_MS = 500
/**
 * How long a stop waits for the parts to end: the database may not answer their queries. Must be longer than
 * CLOSE_TIMEOUT_MS.
 */
const PARTS_STOP_TIMEOUT_MS = 6_000

/** The most connections of one address at the listener of operators. */
const OPERATORS_OF_ADDRESS = 16

/** Starts imds-api. Rejects if a part cannot start, and leaves nothing running then. */
export async function startApi(config: ApiConfig, log: Logger): Promise<Api> {
  const database = await openDatabase(config.database, false, (error) => {
    log.warn({ reason: error.message }, 'a connection to the database broke')
  })
  const stops: (() => Promise<unknown>)[] = [() => database.close()]
  const stop = async () => {
    for (const step of stops.toReversed()) await step()
  }
  try {
    await migrate(database.db)
    const region = await database.db.selectFrom('region').select('name').executeTakeFirst()
    if (region === undefined)
      throw new StartFailure(
        'the database has no region yet: write a region file (deploy/region.example.yaml) and run imds-api apply FILE',
      )
    checkRegion(config, region.name)
    const store = new LazyStore(() => openStore(config.store))
    stops.push(() => Promise.race([store.close(), sleep(STORE_CLOSE_TIMEOUT_MS, undefined, { ref: false })]))
    await store.open().catch((error: unknown) => {
      if (!(error instanceof StoreUnavailable)) throw new StartFailure((error as Error).message)
      log.warn(
        { reason: error.message },
        'the store is unreachable: requests are served, and what they change is published later',
      )
    })
    const { background } = database
    const metrics = buildApiMetrics(database)
    const publisher = new OutboxPublisher({
      db: background.db,
      connect: () => connect(database),
      store,
      counted: metrics.published,
      log,
    })
    const hypervisorCheck = new HypervisorCheck({
      hypervisors: () => usedHypervisors(background.db),
      unannounced: (names) => store.unannounced(names),
      counted: metrics.unannounced,
      log,
    })
    const { mail } = config
    const sender = new InvitationSender({
      db: background.db,
      counted: metrics.invited,
      log,
      mail: mail === undefined ? undefined : { send: buildSmtp(mail), invitationUrl: mail.invitationUrl },
    })
    const audit = openAuditOrFail(config.auditFile, log)
    const auth = buildAuth(database.db, config, () => Date.now(), log)
    const accounts = new AccountChanges(database.db, ACCOUNT_QUEUE)
    const server = await buildApiServer(config, database, accounts, auth, metrics.unreadable, audit, log)
    server.addHook('onResponse', (request, reply, done) => {
      metrics.responded(request.routeOptions.url ?? 'unknown', request.method, reply.statusCode)
      done()
    })
    const operatorServer = buildOperatorServer({ database: background, publisher, registry: metrics.registry })
    const bounds = buildBounds(config, metrics.closed, log)
    bounds.clients.start(server)
    bounds.operators.start(operatorServer)
    const compute = buildCompute(config, database, accounts, metrics, bounds.hypervisors, audit, log)
    stops.push(() =>
      Promise.race([
        Promise.all([
          closeServer(operatorServer),
          closeServer(server),
          publisher.stop(),
          sender.stop(),
          compute.stop(),
        ]),
        sleep(PARTS_STOP_TIMEOUT_MS, undefined, { ref: false }),
      ]),
    )
    // before clients can ask for new ones
    if (config.compute === 'none') await finishActions(database.db, accounts, log)
    const operator = await listen(operatorServer, config.operator, 'IMDS_API_OPERATOR_LISTEN')
    const listening = await listenAt(server, config.listen, 'IMDS_API_LISTEN')
    publisher.start()
    sender.start()
    hypervisorCheck.start()
    await compute.start()
    const purge = setInterval(() => {
      Promise.all([auth.purge(), purgeActions(database.db)]).catch((error: unknown) => {
        log.warn(
          { reason: (error as Error).message },
          'expired tokens, old addresses and old actions were not deleted; retrying in an hour',
        )
      })
    }, PURGE_INTERVAL_MS)
    stops.push(() => {
      clearInterval(purge)
      hypervisorCheck.stop()
      return Promise.resolve()
    })
    log.info(
      {
        listening: listening.map(formatPlace),
        operator: formatHostPort(operator),
        region: region.name,
        version: VERSION,
      },
      'listening',
    )
    return {
      listening,
      operator,
      stop,
      reopenAudit: () => {
        const fault = audit.reopen()
        if (fault !== undefined)
          log.error(
            { reason: fault.message },
            'the audit file cannot be opened again: lines are still written to the old one',
          )
      },
      failed: database.ended.then(() => 'PostgreSQL has ended: its log is in IMDS_API_STATE_DIR/postgres/log'),
    }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Builds the bounds of the connections of each listener. */
function buildBounds({ connectionsPerAddress, trustedProxies }: ApiConfig, closed: ApiMetrics['closed'], log: Logger) {
  const share = shareConnections(descriptors(readLimits()))
  const build = (most: number, ofAddress: number, proxies: readonly string[]) =>
    new Connections({
      most,
      ofAddress: shareOfAddress(ofAddress, most),
      trustedProxies: proxies,
      closed,
      now: () => performance.now(),
      log,
    })
  return {
    clients: build(share.clients, connectionsPerAddress, trustedProxies),
    hypervisors: build(share.hypervisors, connectionsPerAddress, []),
    operators: build(share.operators, OPERATORS_OF_ADDRESS, []),
  }
}

interface Service {
  start(): Promise<void>
  stop(): Promise<void>
}

/**
 * Finishes the actions that were asked for while IMDS_API_COMPUTE was `reported`: with `none`, nobody reports their
 * outcomes.
 */
async function finishActions(db: Database['db'], accounts: AccountChanges, log: Logger): Promise<void> {
  const actions = await finishWaitingActions(db, accounts)
  if (actions > 0)
    log.warn({ actions }, 'actions that waited for the compute system have succeeded, since IMDS_API_COMPUTE is none')
}

/** Builds the compute interface. With IMDS_API_COMPUTE=none it does nothing. */
function buildCompute(
  { compute, computeListener }: ApiConfig,
  database: Database,
  accounts: AccountChanges,
  metrics: ApiMetrics,
  bounds: Connections,
  audit: DestinationStream,
  log: Logger,
): Service {
  const { db } = database
  if (compute === 'none') return { start: () => Promise.resolve(), stop: () => Promise.resolve() }
  const { listen: place, tls, retrySeconds } = computeListener
  const waiters = new Waiters()
  const listener = new NotificationListener(
    () => connect(database),
    COMPUTE_CHANNEL,
    (hypervisor) => {
      waiters.wake(hypervisor)
    },
  )
  const { actionFinished: counted, unreadable } = metrics
  const parts = { db, accounts, waiters, retrySeconds, pollMs: COMPUTE_POLL_MS, counted, unreadable, audit, log }
  const server = buildComputeServer(parts, readTls(tls))
  bounds.start(server)
  let listened = Promise.resolve()
  return {
    start: async () => {
      const [listening] = await listenAt(server, [place], 'IMDS_API_COMPUTE_LISTEN')
      listened = listener.run()
      log.info({ compute: formatPlace(listening!) }, 'hypervisors can fetch actions')
    },
    stop: async () => {
      await Promise.all([closeServer(server), listener.stop()])
      await listened
    },
  }
}

/** Reads the files. Throws an error that names a file that cannot be read. */
function readTls(files: ApiConfig['computeListener']['tls']): ApiServerSettings['tls'] {
  return files === undefined
    ? undefined
    : {
        cert: readFileSync(files.certificate, 'utf8'),
        key: readFileSync(files.key, 'utf8'),
        ca: readFileSync(files.clientCa, 'utf8'),
      }
}

function openAuditOrFail(file: string | undefined, log: Logger): AuditStream {
  try {
    const problem =
      file === undefined
        ? 'an audit line cannot be written to standard error: it is lost'
        : 'an audit line cannot be written: it is written with a later one, unless 1 MiB of lines wait'
    return openAudit(file, (error) => {
      log.error({ reason: error.message }, problem)
    })
  } catch (error) {
    throw new StartFailure(`IMDS_API_AUDIT_FILE cannot be opened: ${(error as Error).message}`, { cause: error })
  }
}

/** Throws if IMDS_REGION names another region than the database: the records would go to that region of Redis. */
function checkRegion({ store }: ApiConfig, region: string): void {
  if (store.region !== undefined && store.region !== region) {
    throw new StartFailure(`IMDS_REGION is ${store.region}, and the region file says ${region}: correct one of them`)
  }
}

/**
 * Waits for the in-flight requests, and closes all connections. After CLOSE_TIMEOUT_MS it also closes those whose
 * requests have not ended.
 */
async function closeServer(server: Pick<FastifyInstance, 'close' | 'server'>): Promise<void> {
  const timer = setTimeout(() => {
    server.server.closeAllConnections()
  }, CLOSE_TIMEOUT_MS)
  await server.close()
  clearTimeout(timer)
}

async function connect({ connection }: Database): Promise<pg.Client> {
  const client = new pg.Client(connection)
  await client.connect()
  return client
}

/** The parts that issue and check tokens. `purge` deletes the expired tokens, and old addresses. */
export interface Auth {
  readonly tokens: AccessTokens
  readonly grants: Grants
  purge(): Promise<void>
}

/** Builds the parts that issue and check tokens. `now`: milliseconds since 1970. */
export function buildAuth(
  db: Database['db'],
  { accessTokenSeconds, refreshTokenSeconds }: Pick<ApiConfig, 'accessTokenSeconds' | 'refreshTokenSeconds'>,
  now: () => number,
  log: Logger,
): Auth {
  const steady = () => performance.now()
  const tokens = new AccessTokens(db, now, steady)
  const families = new TokenFamilies(db, refreshTokenSeconds, now)
  const limit = new FailureLimit(steady)
  const known = new KnownAddresses({ db, limit, now, steady, log })
  return {
    tokens,
    grants: new Grants({ db, tokens, families, limit, known, seconds: accessTokenSeconds, now }),
    purge: async () => {
      await tokens.purge()
      await families.purge()
      await known.purge()
    },
  }
}

type ServerConfig = Pick<
  ApiConfig,
  'baseUrl' | 'tls' | 'trustedProxies' | 'accessTokenSeconds' | 'otpHeaders' | 'compute'
>

/** The API's HTTP server with all routes. */
export async function buildApiServer(
  config: ServerConfig,
  { db, pool }: Pick<Database, 'db' | 'pool'>,
  accounts: AccountChanges,
  { tokens, grants }: Auth,
  unreadable: ApiServerSettings['unreadable'],
  audit: DestinationStream,
  log: Logger,
): Promise<ApiServer> {
  const { baseUrl, tls, trustedProxies, accessTokenSeconds, otpHeaders, compute } = config
  const server = buildServer({
    tls:
      tls === undefined
        ? undefined
        : { cert: readFileSync(tls.certificate, 'utf8'), key: readFileSync(tls.key, 'utf8') },
    trustedProxies,
    unreadable,
    log,
  })
  await server.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'imds-api',
        version: '1.0.0beta',
        description: 'The API of a region. docs/api.md is its guide.',
      },
      servers: [{ url: baseUrl }],
      components: {
        securitySchemes: { token: { type: 'http', scheme: 'bearer' }, client: { type: 'http', scheme: 'basic' } },
      },
      security: [{ token: [] }],
    },
    transformObject: (made) => completeOpenApi((made as Extract<typeof made, { openapiObject: object }>).openapiObject),
  })
  await server.register(swaggerUi, { routePrefix: '/docs' })
  const site = new CurrentSite(baseUrl, db, () => performance.now())
  addTokenEndpoint(server, { grants, seconds: accessTokenSeconds, otpHeaders })
  await server.register(
    (api: ApiServer, _options: object, done: () => void) => {
      api.addHook('onRequest', (_request, reply, next) => {
        void reply.header('Cache-Control', 'no-store') // some responses have a secret
        next()
      })
      respectStrict(api, takesAccount)
      api.addHook('onRequest', buildBearerCheck(tokens)) // a change is checked again at its turn: see auth/requester.ts
      addReadShare(api, new FairQueue(READ_SHARE))
      api.addHook('preHandler', () => site.refresh())
      api.addHook('onSend', buildAudit(audit, describeClient))
      const parts = { db, pool, accounts, site, compute }
      addUserCollaborationRoutes(api, parts)
      void api.register((any: ApiServer, _none: object, added: () => void) => {
        any.addHook('onRequest', buildAccountChoice(db, false))
        addAccountRoutes(any, parts)
        addUserRoutes(any, parts)
        added()
      })
      void api.register((one: ApiServer, _none: object, added: () => void) => {
        one.addHook('onRequest', buildAccountChoice(db, true))
        addChosenAccountRoute(one, parts)
        addApiClientRoutes(one, parts, tokens)
        addApplicationRoutes(one, parts, tokens)
        addCatalogRoutes(one, parts)
        addImageRoutes(one, parts)
        addServerRoutes(one, parts)
        addServerActionRoutes(one, parts)
        addInterfaceRoutes(one, parts)
        addServerGroupRoutes(one, parts)
        addCloudIpRoutes(one, parts)
        addConfigMapRoutes(one, parts)
        addCollaborationRoutes(one, parts)
        addDatabaseServerRoutes(one, parts)
        addRoutesOfOtherDocuments(one)
        added()
      })
      done()
    },
    { prefix: '/1.0' },
  )
  server.get('/1.0/openapi.json', { schema: { hide: true } }, () => server.swagger())
  return server
}
