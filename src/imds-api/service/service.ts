/**
 * The composition root of imds-api, which serves the Brightbox-compatible API (docs/api.md#conformance), "the API" in
 * comments. It builds the services, starts them in order, and stops them. It has no rules of its own.
 */
import { waitAtMost } from '../../limits/in-time.ts'
import type { Log } from '../../runtime/log-codes.ts'
import { formatHostPort, formatListenAddress, type HostPort, type ListenAddress } from '../../runtime/host-port.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { VERSION } from '../../runtime/installation.ts'
import { openStore } from '../../store/open.ts'
import { StoreUnavailable } from '../../store/publisher.ts'
import {
  buildConditionCheck,
  buildAnnouncement,
  buildPublisher,
  buildPurge,
  buildSender,
  listenForEvents,
} from './background.ts'
import { finishWaitingActions } from '../changes/action-queue.ts'
import { regionFault, type ApiConfig } from './config.ts'
import { migrate } from '../database/migrate.ts'
import { openDatabase } from '../database/open.ts'
import { DatabaseReport } from '../http/database-errors.ts'
import { buildClientListener, buildComputeListener, buildOperatorListener } from './listeners.ts'
import { readRegionIssuer } from '../auth/region-issuer.ts'
import { StoreOpener } from '../publish/store-opener.ts'
import { buildAuth } from './rest.ts'
import { buildParts, type ApiService, type ServiceParts } from './service-parts.ts'
import type { Db } from '../database/transaction.ts'

/** A running imds-api. */
export interface Api {
  /** In the order of the configuration. */
  readonly listening: readonly ListenAddress[]
  readonly operator: HostPort
  stop(): Promise<void>
}

/** How long a stop waits for the store to close: its connection may still be opening. */
const STORE_CLOSE_TIMEOUT_MS = 500
/**
 * How long a stop waits for the listeners, and then for the other services: the database may not answer their queries.
 * Must be longer than CLOSE_TIMEOUT_MS of the listeners.
 */
const SERVICES_STOP_TIMEOUT_MS = 11_000

/** Starts imds-api. Rejects if a part cannot start, and leaves nothing running then. */
export async function startApi(config: ApiConfig, log: Log): Promise<Api> {
  const databaseReport = new DatabaseReport(log)
  const database = await openDatabase(config.database, false, (error) => databaseReport.lost(error))
  const storeOpener = new StoreOpener(() => openStore(config.store))
  const listeners: ApiService[] = []
  const background: ApiService[] = []
  const stop = async () => {
    for (const services of [listeners, background])
      // so that what the last requests change is published
      await waitAtMost(Promise.all(services.map((service) => service.stop())), SERVICES_STOP_TIMEOUT_MS)
    await waitAtMost(storeOpener.close(), STORE_CLOSE_TIMEOUT_MS)
    await database.close()
  }
  try {
    await migrate(database.migrations.db)
    const region = await regionOf(database.db, config)
    await openOrRetry(storeOpener)
    const parts = buildParts(config, database, databaseReport, storeOpener, log)
    const issuer = config.issuer && (await readRegionIssuer(config.issuer))
    const auth = buildAuth(database.db, config, issuer, () => Date.now())
    const [publisher, sender] = [buildPublisher(parts), buildSender(parts)]
    const clients = await buildClientListener(parts, auth)
    listeners.push(clients)
    const state = {
      readRegion: parts.readRegion,
      publishing: publisher,
      certificates: () => parts.metrics.certificates,
      nowMs: () => Date.now(),
    }
    const operators = buildOperatorListener(parts, state)
    listeners.push(operators)
    const checks = [buildAnnouncement(parts), buildConditionCheck(state, log)]
    background.push(publisher, sender, ...checks, listenForEvents(parts), buildPurge(parts, auth))
    const hypervisors = buildComputeListener(parts)
    listeners.push(hypervisors)
    // before clients can ask for new ones
    if (config.compute === 'none') await finishActions(parts)
    const operator = await operators.start()
    const listening = await clients.start()
    for (const service of [...background, hypervisors]) await service.start()
    const names = { listening: listening.map(formatListenAddress), operator: formatHostPort(operator) }
    log.info({ ...names, region, version: VERSION }, 'listening')
    return {
      listening,
      operator,
      stop: async () => {
        log.info({ delay_seconds: config.stopDelaySeconds }, 'stopping')
        await parts.delay.run(config.stopDelaySeconds)
        await stop()
      },
    }
  } catch (error) {
    await stop()
    throw error
  }
}

/** The name of the region. Throws if there is none, or if IMDS_REGION names another: its records would go there. */
async function regionOf(db: Db, config: ApiConfig): Promise<string> {
  const region = await db.selectFrom('region').select('name').executeTakeFirst()
  if (region === undefined)
    throw new StartFailure(
      'the database has no region yet: write a region file (deploy/region.example.yaml) and run imds-api apply FILE',
    )
  const fault = regionFault(config, region.name, 'the region file says')
  if (fault !== undefined) throw new StartFailure(fault)
  return region.name
}

/** Opens the store. An unreachable one is opened later. */
async function openOrRetry(storeOpener: StoreOpener): Promise<void> {
  await storeOpener.open().catch((error: unknown) => {
    if (!(error instanceof StoreUnavailable)) throw new StartFailure((error as Error).message)
  })
}

/**
 * Finishes the actions that were asked for while IMDS_API_COMPUTE was `reported`: with `none`, no hypervisor reports
 * their outcomes.
 */
async function finishActions({ database, accounts, log }: ServiceParts): Promise<void> {
  const actions = await finishWaitingActions(database.db, accounts)
  if (actions > 0)
    log.warn(
      { code: 'actions-not-awaited', actions },
      'actions that waited for the compute system have succeeded, since IMDS_API_COMPUTE is none',
    )
}
