/** What the services of imds-api share. */
import type { Log } from '../../runtime/log-codes.ts'
import { descriptors, readLimits } from '../../runtime/listen.ts'
import { AccountChanges } from '../changes/account-changes.ts'
import { buildRegionReader, type ReadRegion } from '../conditions/region-state.ts'
import type { ApiConfig } from './config.ts'
import type { Database } from '../database/open.ts'
import type { WriteAudit } from '../http/audit.ts'
import type { DatabaseReport } from '../http/database-errors.ts'
import { ClientConnections } from '../http/connections.ts'
import { shareConnections, shareOfAddress } from './connection-limits.ts'
import type { ApiServerSettings } from '../http/server.ts'
import { buildShedReport } from '../http/shed-report.ts'
import { buildApiMetrics, type ApiMetrics } from './metrics.ts'
import type { StoreOpener } from '../publish/store-opener.ts'
import { CHECK_INTERVAL_MS, Waits } from '../resources/kit/waits.ts'
import { StopDelay } from './stop-delay.ts'

/** A part of imds-api that works until imds-api stops. `stop` may be called without `start`. */
export interface ApiService {
  start(): unknown
  stop(): Promise<unknown>
}

export interface ServiceParts {
  readonly config: ApiConfig
  readonly database: Database
  readonly storeOpener: StoreOpener
  readonly metrics: ApiMetrics
  readonly readRegion: ReadRegion
  readonly accounts: AccountChanges
  readonly waits: Waits
  readonly onUnreadable: ApiServerSettings['onUnreadable']
  readonly onShed: ApiServerSettings['onShed']
  readonly databaseReport: DatabaseReport
  readonly audit: WriteAudit
  readonly delay: StopDelay
  readonly connections: Readonly<Record<'clients' | 'hypervisors' | 'operators', ClientConnections>>
  readonly log: Log
}

/** The most connections of one address at the listener of operators. */
const OPERATORS_OF_ADDRESS = 16

export function buildParts(
  config: ApiConfig,
  database: Database,
  databaseReport: DatabaseReport,
  storeOpener: StoreOpener,
  log: Log,
): ServiceParts {
  const waits = new Waits(CHECK_INTERVAL_MS)
  const readRegion = buildRegionReader(database.background.db, () => storeOpener.open())
  const metrics = buildApiMetrics({ database, readRegion, waits: () => waits.count })
  return {
    config,
    database,
    storeOpener,
    metrics,
    readRegion,
    accounts: new AccountChanges(database.db, database.pool.options.max),
    waits,
    onUnreadable: metrics.countUnreadable,
    onShed: buildShedReport({ count: metrics.countShed, now: () => performance.now(), log }),
    databaseReport,
    audit: (line) => log.info(line, 'audit'),
    delay: new StopDelay(),
    connections: buildConnections(config, metrics.countClosed, log),
    log,
  }
}

function buildConnections(
  { connectionsPerAddress, trustedProxies }: ApiConfig,
  onClose: ApiMetrics['countClosed'],
  log: Log,
): ServiceParts['connections'] {
  const share = shareConnections(descriptors(readLimits()))
  const build = (maxConnections: number, ofAddress: number, proxies: readonly string[]) =>
    new ClientConnections({
      maxConnections,
      maxPerAddress: shareOfAddress(ofAddress, maxConnections),
      trustedProxies: proxies,
      onClose,
      now: () => performance.now(),
      log,
    })
  return {
    clients: build(share.clients, connectionsPerAddress, trustedProxies),
    hypervisors: build(share.hypervisors, connectionsPerAddress, []),
    operators: build(share.operators, OPERATORS_OF_ADDRESS, []),
  }
}
