/** The metrics of imds-api. Labels are from closed sets: routes as declared, methods, statuses. */
import { Counter, Gauge, type Registry } from 'prom-client'
import { X509Certificate } from 'node:crypto'
import { buildRegistry, gaugesOf, labelled } from '../../runtime/metrics.ts'
import { CLOSED_REASONS } from '../http/connections.ts'
import { KEYED_RESULTS } from '../http/idempotency.ts'
import type { PoolUsage } from '../changes/allocate.ts'
import type { ReadRegion, RegionState } from '../conditions/region-state.ts'
import { openRam, type ListenerCertificate } from '../conditions/table.ts'
import type { Database } from '../database/open.ts'
import { SHED_QUEUES } from '../model/refusal.ts'
import { PUBLISH_OUTCOMES } from '../publish/write-servers.ts'
import { UNREADABLE_REASONS } from '../http/unreadable.ts'

/** The counters with one label, which has all of its values from the start, by the functions that count. */
const COUNTERS = {
  countUnreadable: [
    'imds_api_unreadable_requests_total',
    'reason',
    UNREADABLE_REASONS,
    'Requests that could not be read, by the name of the error; payload_too_large: of a chunk extension.',
  ],
  countClosed: [
    'imds_api_closed_connections_total',
    'reason',
    CLOSED_REASONS,
    'Connections that were closed: address (one address had too many), all (the listener had too many), ' +
      'unread (responses were not read), pipelined (more than 16 requests without responses).',
  ],
  countKeyed: [
    'imds_api_keyed_requests_total',
    'result',
    KEYED_RESULTS,
    'Requests with an Idempotency-Key: new, or replayed (they got the response of an earlier request).',
  ],
  countShed: [
    'imds_api_shed_requests_total',
    'queue',
    SHED_QUEUES,
    'Requests that got 503 because too many waited, by queue.',
  ],
  countPublish: [
    'imds_api_publishes_total',
    'result',
    PUBLISH_OUTCOMES,
    'Publishes of servers: published, unchanged, removed, stale (the store had a higher revision), ' +
      'incarnation (it has another server with this id), invalid or address-owned (it refused the record), failed.',
  ],
  countOutcome: [
    'imds_api_compute_outcomes_total',
    'outcome',
    ['succeeded', 'failed'],
    'Actions on servers whose outcome a hypervisor has reported.',
  ],
  countInvitation: [
    'imds_api_invitations_total',
    'result',
    ['sent', 'failed'],
    'Attempts to send an invitation by mail, by result.',
  ],
} as const satisfies Readonly<
  Record<string, readonly [name: string, label: string, values: readonly string[], help: string]>
>
type Counts = { readonly [Name in keyof typeof COUNTERS]: (value: (typeof COUNTERS)[Name][2][number]) => void }

const MIB = 2 ** 20

/** The gauges of the region, which are missing while the database is unreachable. */
const SCRAPED: Readonly<Record<string, readonly [help: string, of: (region: RegionState) => number]>> = {
  imds_api_ram_bytes: [
    'RAM of the hypervisors that get new servers.',
    ({ hypervisors }) => openRam(hypervisors.hypervisors).ram * MIB,
  ],
  imds_api_ram_free_bytes: [
    'RAM of these hypervisors that no server uses.',
    ({ hypervisors }) => openRam(hypervisors.hypervisors).free * MIB,
  ],
  imds_api_outbox_servers: ['Servers that wait to be published.', ({ outbox }) => outbox.length],
  imds_api_outbox_age_seconds: [
    'How long the oldest change has waited to be published; 0: none waits.',
    ({ outbox }) => outbox.age,
  ],
  imds_api_compute_actions: ['Actions on servers that wait for their outcome.', ({ actions }) => actions.waiting],
  imds_api_compute_age_seconds: [
    'How long the oldest of these has waited; 0: none waits.',
    ({ actions }) => actions.age,
  ],
}
const POOLS: Readonly<Record<string, readonly [help: string, of: (pool: PoolUsage) => number]>> = {
  imds_api_pool_addresses: [
    'Addresses of the pools, by kind: mac, private_ipv4, public_ipv4, public_ipv6.',
    ({ size }) => size,
  ],
  imds_api_pool_free_addresses: ['Free addresses of the pools, by kind.', ({ size, used }) => size - used],
}

/** The registry, and the functions that count. */
export type ApiMetrics = ReturnType<typeof declareAll>

/** `waits`: how many requests wait. */
export interface ApiMetricsSources {
  readonly database: Pick<Database, 'pool' | 'background'>
  readonly readRegion: ReadRegion
  readonly waits: () => number
}

export function buildApiMetrics(sources: ApiMetricsSources): ApiMetrics {
  return declareAll(buildRegistry(), sources)
}

function declareAll(registry: Registry, sources: ApiMetricsSources) {
  const registers = [registry]
  declareGauges(registry, sources)
  const counts = Object.entries(COUNTERS).map(([count, [name, label, values, help]]) => {
    const counted = labelled(registry, label, values, { name, help })
    return [count, (value: string) => counted.inc({ [label]: value } as Record<typeof label, string>)]
  })
  const requests = new Counter({
    name: 'imds_api_requests_total',
    help: 'Requests to the API, by route, method and status.',
    labelNames: ['route', 'method', 'status'] as const,
    registers,
  })
  const batches = new Counter({
    name: 'imds_api_publish_batches_total',
    help: 'Batches of servers that were published together.',
    registers,
  })
  const certificates: ListenerCertificate[] = []
  return {
    registry,
    ...(Object.fromEntries(counts) as Counts),
    countResponse: (route: string, method: string, status: number) => requests.inc({ route, method, status }),
    countBatch: () => batches.inc(),
    /** `pem`: the certificate of a listener, with its chain or without it. */
    setCertificate: (listener: 'clients' | 'hypervisors', pem: string) => {
      certificates.push({ listener, endMs: new X509Certificate(pem).validToDate.getTime() })
    },
    certificates: certificates as readonly ListenerCertificate[],
  }
}

function declareGauges(
  registry: Registry,
  { database: { pool, background }, readRegion, waits }: ApiMetricsSources,
): void {
  /** Undefined: the database is unreachable. */
  const read = () => readRegion().catch(() => undefined)
  const gauge = gaugesOf(registry)
  for (const [name, [help, of]] of Object.entries(SCRAPED))
    gauge(name, help, async () => {
      const region = await read()
      return region && of(region)
    })
  for (const [name, [help, of]] of Object.entries(POOLS))
    new Gauge({
      name,
      help,
      registers: [registry],
      labelNames: ['kind'] as const,
      async collect() {
        this.reset()
        for (const pool of (await read())?.pools ?? []) this.inc({ kind: pool.kind }, of(pool))
      },
    })
  gauge('imds_api_waits', 'Requests that wait for an event, or for a state of a resource.', waits)
  gauge(
    'imds_api_database_connections',
    'Open connections to the database: for requests, and for everything else.',
    () => pool.totalCount + background.pool.totalCount,
  )
  gauge('imds_api_database_waiting', 'Requests that wait for a connection to the database.', () => pool.waitingCount)
}
