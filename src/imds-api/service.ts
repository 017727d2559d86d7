/**
 * The composition root of imds-api, which serves the Brightbox-compatible API (docs/api-conformance.md), "the API" in
 * comments. It builds the parts in order and stops them in reverse. It has no rules of its own.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { readFileSync } from 'node:fs'
import type { Logger } from 'pino'
import { formatHostPort, formatListenAddress, type HostPort, type ListenAddress } from '../runtime/host-port.ts'
import { descriptors, listen, listenAt, readLimits, StartFailure } from '../runtime/listen.ts'
import { buildPageTurns } from '../pages/page-turns.ts'
import { parsePassword, formatUnreadable } from '../runtime/secret-file.ts'
import type { Reports } from '../metadata/reports.ts'
import { openStore } from '../store/open.ts'
import { StoreUnavailable } from '../store/publisher.ts'
import { PeriodicTask } from '../runtime/periodic-task.ts'
import { VERSION } from '../runtime/version.ts'
import { openAudit, type AuditStream } from './http/audit.ts'
import { keyedResultOf } from './http/idempotency.ts'
import { buildComputeServer } from './compute/server.ts'
import { Waiters } from './compute/waiters.ts'
import type { ApiConfig } from './config.ts'
import { ClientConnections, shareConnections, shareOfAddress } from './http/connections.ts'
import { ACCOUNT_QUEUE, AccountChanges } from './changes/account-changes.ts'
import { COMPUTE_CHANNEL } from './changes/actions.ts'
import { finishWaitingActions, purgeActions } from './changes/action-queue.ts'
import { purgeEvents } from './changes/events.ts'
import { purgeKeys } from './changes/keyed-change.ts'
import { purgeServers } from './changes/servers.ts'
import { EVENTS_CHANNEL } from './database/migrations/events.ts'
import { migrate } from './database/migrate.ts'
import { NotificationListener } from './database/notifications.ts'
import { openDatabase, type Database } from './database/open.ts'
import { readHypervisorUsage } from './changes/placement.ts'
import { InvitationSender } from './mail/sender.ts'
import { formatPage } from './page/page.ts'
import { readRegionState } from './page/region-state.ts'
import { buildSmtp } from './mail/smtp.ts'
import { buildApiMetrics, type ApiMetrics } from './metrics.ts'
import { buildOperatorServer, type ApiOperatorParts } from './operator.ts'
import { buildBootWatch } from './publish/boot-watch.ts'
import { HypervisorCheck } from './publish/hypervisor-check.ts'
import { readHypervisors, type RegionHypervisors } from './publish/hypervisors.ts'
import { BATCH, OutboxPublisher } from './publish/outbox-publisher.ts'
import { openClaimed } from './publish/region-claim.ts'
import { StoreOpener } from './publish/store-opener.ts'
import type { ApiServer, ApiServerSettings } from './http/server.ts'
import { StopDelay } from './stop-delay.ts'
import { buildShedReport } from './http/shed-report.ts'
import { addResponseCount } from './http/steps.ts'
import { EventStreams } from './resources/event-streams.ts'
import { MemberWaits } from './resources/member-waits.ts'
import { buildApiServer, buildAuth, type Auth } from './rest.ts'
import { readTextFile } from '../runtime/text-file.ts'

/** A running imds-api. `failed` resolves with the reason when it cannot continue. */
export interface Api {
  /** In the order of the configuration. */
  readonly listening: readonly ListenAddress[]
  readonly operator: HostPort
  readonly failed: Promise<string>
  /** Opens the file of the audit lines again, after a log rotation. */
  reopenAudit(): void
  stop(): Promise<void>
}

const PURGE_INTERVAL_MS = 3_600_000
const COMPUTE_POLL_MS = 2_000
/** The longest that a stop waits for requests on which imds-api works, such as a change that waits for its turn. */
const CLOSE_TIMEOUT_MS = 10_000
/** How long the response to a client waits for the reports of a guest. */
const REPORTS_TIMEOUT_MS = 500
/** How long a stop waits for the store to close: its connection may still be opening. */
const STORE_CLOSE_TIMEOUT_MS = 500
/**
 * How long a stop waits for the parts to end: the database may not answer their queries. Must be longer than
 * CLOSE_TIMEOUT_MS.
 */
const PARTS_STOP_TIMEOUT_MS = 11_000

/** The most connections of one address at the listener of operators. */
const OPERATORS_OF_ADDRESS = 16

/** What the parts of the service share. */
interface ServiceParts {
  readonly config: ApiConfig
  readonly database: Database
  readonly store: StoreOpener
  readonly metrics: ApiMetrics
  readonly accounts: AccountChanges
  readonly streams: EventStreams
  readonly waits: MemberWaits
  readonly unreadable: ApiServerSettings['unreadable']
  readonly shed: ApiServerSettings['shed']
  readonly audit: AuditStream
  readonly delay: StopDelay
  readonly bounds: ReturnType<typeof buildBounds>
  readonly log: Logger
}

/** What runs beside the listeners of clients and operators. */
interface Service {
  start(): unknown
  stop(): Promise<void>
}

/** Starts imds-api. Rejects if a part cannot start, and leaves nothing running then. */
export async function startApi(config: ApiConfig, log: Logger): Promise<Api> {
  const password = readPassword(config.operator.passwordFile)
  const database = await openDatabase(config.database, false, (error) => {
    log.warn({ reason: error.message }, 'a connection to the database broke')
  })
  const stops: (() => Promise<unknown>)[] = [() => database.close()]
  const stop = async () => {
    for (const step of stops.toReversed()) await step()
  }
  try {
    await migrate(database.db)
    const region = await regionOf(database.db, config)
    const store = new StoreOpener(() => openStore(config.store))
    stops.push(() => inTime(store.close(), STORE_CLOSE_TIMEOUT_MS))
    await openOrRetry(store, log)
    const parts = buildParts(config, database, store, log)
    const { delay, bounds, audit } = parts
    const auth = buildAuth(database.db, config, () => Date.now(), log)
    const server = await buildRest(parts, auth)
    const background = buildBackground(parts)
    const operatorServer = buildOperators(parts, background, password)
    const services = [background, buildCompute(parts), listenForEvents(parts), buildPurge(database.db, auth, log)]
    stops.push(() =>
      inTime(
        Promise.all([operatorServer, server].map(closeServer).concat(services.map((service) => service.stop()))),
        PARTS_STOP_TIMEOUT_MS,
      ),
    )
    // before clients can ask for new ones
    if (config.compute === 'none') await finishActions(parts)
    const operator = await listen(operatorServer, config.operator, 'IMDS_API_OPERATOR_LISTEN')
    const listening = await listenAt(server, config.listen, 'IMDS_API_LISTEN', () => {
      bounds.clients.endWaiting()
    })
    for (const service of services) await service.start()
    const names = { listening: listening.map(formatListenAddress), operator: formatHostPort(operator) }
    log.info({ ...names, region, version: VERSION }, 'listening')
    return {
      listening,
      operator,
      stop: async () => {
        log.info({ delay_seconds: config.stopDelaySeconds }, 'stopping')
        await delay.run(config.stopDelaySeconds)
        await stop()
      },
      reopenAudit: () => {
        reopenAudit(audit, log)
      },
      failed: database.ended.then(() => 'PostgreSQL has ended: its log is in IMDS_API_STATE_DIR/postgres/log'),
    }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Resolves with what a task returns, or after the time with nothing: the task goes on. */
function inTime<T>(task: Promise<T>, timeoutMs: number): Promise<T | undefined> {
  return Promise.race([task, sleep(timeoutMs, undefined, { ref: false })])
}

function buildParts(config: ApiConfig, database: Database, store: StoreOpener, log: Logger): ServiceParts {
  const { db } = database.background
  const metrics = buildApiMetrics(database)
  const streams = new EventStreams({ db, now: () => performance.now(), ended: metrics.streamEnded })
  const waits = new MemberWaits({ db, ended: metrics.waitEnded })
  metrics.countOpen({ streams: () => streams.count, waits: () => waits.count })
  return {
    config,
    database,
    store,
    metrics,
    accounts: new AccountChanges(database.db, ACCOUNT_QUEUE),
    streams,
    waits,
    unreadable: metrics.unreadable,
    shed: buildShedReport({ counted: metrics.shed, now: () => performance.now(), log }),
    audit: openAuditOrFail(config.auditFile, log),
    delay: new StopDelay(),
    bounds: buildBounds(config, metrics.closed, log),
    log,
  }
}

/** Builds the server for clients, with its metrics and bounds. */
async function buildRest(parts: ServiceParts, auth: Auth): Promise<ApiServer> {
  const { config, store, metrics, delay, bounds } = parts
  const server = await buildApiServer({ ...parts, auth, reports: (id) => reportsInTime(store, id) })
  if (config.tls !== undefined) metrics.certificate('clients', readFileSync(config.tls.certificate, 'utf8'))
  addResponseCount(server, (request, reply, done) => {
    metrics.responded(request.routeOptions.url ?? 'unknown', request.method, reply.statusCode)
    const keyed = keyedResultOf(request, reply)
    if (keyed !== undefined) metrics.keyed(keyed)
    done()
  })
  delay.watch(server)
  bounds.clients.start(server)
  return server
}

/** Builds the server for operators. */
function buildOperators(
  { database, store, metrics, delay, bounds }: ServiceParts,
  { publisher, sender }: ReturnType<typeof buildBackground>,
  password: string | undefined,
): FastifyInstance {
  const { db } = database.background
  const hypervisors = () => readHypervisors(db, () => store.open())
  const server = buildOperatorServer({
    database: database.background,
    publisher,
    isStopping: () => delay.hasBegun,
    hypervisors,
    page: buildPage(db, publisher, sender, hypervisors),
    registry: metrics.registry,
    password,
    now: () => performance.now(),
  })
  bounds.operators.start(server)
  return server
}

/** The name of the region. Throws if there is none, or if IMDS_REGION names another: its records would go there. */
async function regionOf(db: Database['db'], { store }: ApiConfig): Promise<string> {
  const region = await db.selectFrom('region').select('name').executeTakeFirst()
  if (region === undefined)
    throw new StartFailure(
      'the database has no region yet: write a region file (deploy/region.example.yaml) and run imds-api apply FILE',
    )
  if (store.region !== undefined && store.region !== region.name)
    throw new StartFailure(
      `IMDS_REGION is ${store.region}, and the region file says ${region.name}: correct one of them`,
    )
  return region.name
}

/** Reads what a guest has reported. Undefined: nothing, or the store does not answer in time. */
async function reportsInTime(store: StoreOpener, id: string): Promise<Reports | undefined> {
  const reports = store
    .open()
    .then((opened) => opened.reports(id))
    .catch(() => undefined)
  return inTime(reports, REPORTS_TIMEOUT_MS)
}

/** Opens the store. An unreachable one is opened later. */
async function openOrRetry(store: StoreOpener, log: Logger): Promise<void> {
  await store.open().catch((error: unknown) => {
    if (!(error instanceof StoreUnavailable)) throw new StartFailure((error as Error).message)
    log.warn(
      { reason: error.message },
      'the store is unreachable: requests are served, and what they change is published later',
    )
  })
}

/** Builds what works without a request. */
function buildBackground({ config: { mail, bootSeconds }, database, store, metrics, log }: ServiceParts) {
  const { db } = database.background
  const publisher = new OutboxPublisher({
    db,
    connect: () => database.connect(),
    openStore: openClaimed(db, () => store.open(), log),
    batchSize: BATCH,
    counted: metrics.published,
    batched: metrics.batched,
    bootSeconds,
    log,
  })
  const bootWatch = buildBootWatch({ db, openStore: () => store.open(), log })
  const sender = new InvitationSender({
    db,
    counted: metrics.invited,
    log,
    mail: mail === undefined ? undefined : { send: buildSmtp(mail), invitationUrl: mail.invitationUrl },
  })
  const hypervisorCheck = new HypervisorCheck({
    hypervisors: () => readHypervisorUsage(db),
    announce: async (drained) => {
      const { fleet } = await store.open()
      await fleet.announceControlPlane({ version: VERSION, seenAt: new Date().toISOString() }, drained)
    },
    unannounced: async (names) => (await store.open()).unannounced(names),
    counted: metrics.unannounced,
    log,
  })
  return {
    publisher,
    sender,
    start: () => {
      for (const part of [publisher, bootWatch, sender, hypervisorCheck]) part.start()
    },
    stop: async () => {
      await Promise.all([publisher, bootWatch, sender, hypervisorCheck].map((part) => part.stop()))
    },
  }
}

/** Builds what deletes expired rows: at the start, and each hour. */
function buildPurge(db: Database['db'], auth: Auth, log: Logger): Service {
  const purge = async () => {
    await Promise.all([auth.purge(), purgeActions(db), purgeKeys(db), purgeEvents(db), purgeServers(db)])
  }
  return new PeriodicTask(purge, PURGE_INTERVAL_MS, ({ message }) => {
    log.warn(
      { reason: message },
      'expired tokens, old addresses, actions, keys, events and deleted servers were not deleted; retrying in an hour',
    )
  })
}

/** Builds the status page of the operators' listener. */
function buildPage(
  db: Database['db'],
  publisher: OutboxPublisher,
  sender: InvitationSender,
  hypervisors: () => Promise<RegionHypervisors>,
): ApiOperatorParts['page'] {
  const turns = buildPageTurns()
  return (question) =>
    turns.take(() =>
      formatPage(
        {
          version: VERSION,
          state: () => readRegionState({ db, hypervisors, postponed: () => sender.postponed() }),
          publishing: () => publisher.problem,
          nowMs: () => Date.now(),
        },
        question,
      ),
    )
}

/** Reads the password of operators. */
function readPassword(path: string | undefined): string | undefined {
  if (path === undefined) return undefined
  const startFailure = (message: string) => new StartFailure(`IMDS_API_OPERATOR_PASSWORD_FILE ${message}`)
  let text
  try {
    text = readTextFile(path)
  } catch (error) {
    throw startFailure(formatUnreadable(path, error))
  }
  const password = parsePassword(text)
  if (!password.ok) throw startFailure(password.faults.join())
  return password.value
}

/** Builds the bounds of the connections of each listener. */
function buildBounds({ connectionsPerAddress, trustedProxies }: ApiConfig, closed: ApiMetrics['closed'], log: Logger) {
  const share = shareConnections(descriptors(readLimits()))
  const build = (most: number, ofAddress: number, proxies: readonly string[]) =>
    new ClientConnections({
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

/**
 * Finishes the actions that were asked for while IMDS_API_COMPUTE was `reported`: with `none`, nobody reports their
 * outcomes.
 */
async function finishActions({ database, accounts, log }: ServiceParts): Promise<void> {
  const actions = await finishWaitingActions(database.db, accounts)
  if (actions > 0)
    log.warn({ actions }, 'actions that waited for the compute system have succeeded, since IMDS_API_COMPUTE is none')
}

/** Builds the listener for the notifications of events. */
function listenForEvents({ database, streams, waits }: ServiceParts): Service {
  return new NotificationListener(
    () => database.connect(),
    EVENTS_CHANNEL,
    (payload) => {
      const [accountId, resourceId] = payload.split(' ')
      streams.wake(accountId!)
      waits.wake(resourceId)
    },
  )
}

/** Builds the compute interface. With IMDS_API_COMPUTE=none it does nothing. */
function buildCompute(parts: ServiceParts): Service {
  const { config, database, metrics, bounds, delay, log } = parts
  if (config.compute === 'none') return { start: () => undefined, stop: () => Promise.resolve() }
  const { listen: place, tls, retrySeconds } = config.computeListener
  const waiters = new Waiters()
  const listener = new NotificationListener(
    () => database.connect(),
    COMPUTE_CHANNEL,
    (hypervisor) => {
      waiters.wake(hypervisor)
    },
  )
  const pems = readComputeTls(tls)
  const settings = { waiters, retrySeconds, pollMs: COMPUTE_POLL_MS, counted: metrics.actionFinished }
  const server = buildComputeServer({ ...parts, ...settings, db: database.db }, pems)
  if (pems !== undefined) metrics.certificate('hypervisors', pems.cert)
  bounds.hypervisors.start(server)
  delay.watch(server)
  return {
    start: async () => {
      const [listening] = await listenAt(server, [place], 'IMDS_API_COMPUTE_LISTEN', () => {
        bounds.hypervisors.endWaiting()
      })
      listener.start()
      log.info({ compute: formatListenAddress(listening!) }, 'hypervisors can fetch actions')
    },
    stop: async () => {
      await Promise.all([closeServer(server), listener.stop()])
    },
  }
}

/** Reads the files. Throws an error that names a file that cannot be read. */
function readComputeTls(files: ApiConfig['computeListener']['tls']): ApiServerSettings['tls'] {
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

function reopenAudit(audit: AuditStream, log: Logger): void {
  const fault = audit.reopen()
  if (fault !== undefined)
    log.error(
      { reason: fault.message },
      'the audit file cannot be opened again: lines are still written to the old one',
    )
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
