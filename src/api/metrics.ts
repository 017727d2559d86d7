/** The metrics of imds-api. Labels are from closed sets: routes as declared, methods, statuses. */
import { collectDefaultMetrics, Counter, Gauge, Registry } from 'prom-client'
import { sql } from 'kysely'
import { X509Certificate } from 'node:crypto'
import { VERSION } from '../runtime/version.ts'
import { CLOSED_REASONS, type ClosedReason } from './http/connections.ts'
import { readQueue } from './changes/action-queue.ts'
import { readPools, type PoolsOfKind } from './changes/allocate.ts'
import { placedHypervisors, ramForServers } from './changes/placement.ts'
import type { Database } from './database/open.ts'
import type { Outcome } from './model/server-actions.ts'
import type { InvitationOutcome } from './mail/sender.ts'
import type { PublishOutcome } from './publish/batch.ts'
import { STREAM_ENDS, type StreamEnd } from './resources/event-streams.ts'
import { UNREADABLE_REASONS, type UnreadableReason } from './http/unreadable.ts'

/** The registry, and the functions that count. */
export interface ApiMetrics {
  readonly registry: Registry
  readonly responded: (route: string, method: string, status: number) => void
  readonly unreadable: (reason: UnreadableReason) => void
  readonly closed: (reason: ClosedReason) => void
  readonly published: (outcome: PublishOutcome) => void
  readonly invited: (outcome: InvitationOutcome) => void
  readonly actionFinished: (outcome: Outcome) => void
  readonly unannounced: (hypervisors: number) => void
  readonly streamEnded: (reason: StreamEnd) => void
  /** `count`: the open streams of events, at a scrape. */
  readonly countStreams: (count: () => number) => void
  /** `pem`: the certificate of a listener, with its chain or without it. */
  readonly certificate: (listener: 'clients' | 'hypervisors', pem: string) => void
}

const OUTCOMES: readonly PublishOutcome[] = [
  'published',
  'unchanged',
  'removed',
  'stale',
  'taken',
  'invalid',
  'address-owned',
  'failed',
]

/**
 * Declares all metrics. Those of the outbox are read from the database at a scrape; while it is unreachable they are
 * missing.
 */
export function buildApiMetrics({ pool, background }: Pick<Database, 'pool' | 'background'>): ApiMetrics {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  new Gauge({
    name: 'imds_build_info',
    help: 'Always 1; the labels are the versions of imds and of Node.',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version: VERSION, node: process.versions.node }, 1)
  const requests = new Counter({
    name: 'imds_api_requests_total',
    help: 'Requests to the API, by route, method and status.',
    labelNames: ['route', 'method', 'status'] as const,
    registers,
  })
  const unreadable = new Counter({
    name: 'imds_api_unreadable_requests_total',
    registers,
    labelNames: ['reason'] as const,
    help:
      'Requests to the API or the compute interface that could not be read, so they have no route: bad_request ' +
      '(malformed, or not HTTP/1.0 or 1.1), request_timeout, header_fields_too_large, payload_too_large (of a chunk ' +
      'extension).',
  })
  for (const reason of UNREADABLE_REASONS) unreadable.inc({ reason }, 0)
  const closed = new Counter({
    name: 'imds_api_closed_connections_total',
    registers,
    labelNames: ['reason'] as const,
    help:
      'Connections that were closed: address (one address had too many), all (the listener had too many), unread (a ' +
      'client did not read its response in time, or unread responses took too much memory), pipelined (a client ' +
      'sent many requests without waiting for their responses).',
  })
  for (const reason of CLOSED_REASONS) closed.inc({ reason }, 0)
  const publishes = new Counter({
    name: 'imds_api_publishes_total',
    registers,
    labelNames: ['result'] as const,
    help:
      'Publishes of servers: published, unchanged, removed, stale (the store had a higher revision), taken (the ' +
      'store has another server with this id), invalid or address-owned (the store refused the record), failed (the ' +
      'store or the database could not be used).',
  })
  for (const result of OUTCOMES) publishes.inc({ result }, 0)
  const invitations = new Counter({
    name: 'imds_api_invitations_total',
    registers,
    labelNames: ['result'] as const,
    help: 'Attempts to send an invitation by mail: sent, failed (it is tried again).',
  })
  for (const result of ['sent', 'failed'] as const) invitations.inc({ result }, 0)
  const actions = new Counter({
    name: 'imds_api_compute_outcomes_total',
    registers,
    labelNames: ['outcome'] as const,
    help: 'Actions on servers whose outcome a hypervisor has reported: succeeded, failed.',
  })
  for (const outcome of ['succeeded', 'failed'] as const) actions.inc({ outcome }, 0)
  const streamEnds = new Counter({
    name: 'imds_api_event_streams_ended_total',
    registers,
    labelNames: ['reason'] as const,
    help:
      'Streams of events that have ended: client (it closed the connection), unread (it did not read), right (its ' +
      'access token or its access to the account ended), gone (events that it had not got were deleted), stop.',
  })
  for (const reason of STREAM_ENDS) streamEnds.inc({ reason }, 0)
  const unannounced = new Gauge({
    name: 'imds_api_unannounced_hypervisors',
    registers,
    help:
      'Hypervisors of the region that no daemon has ever announced: the guests of their servers get no metadata. 0 ' +
      'with a store of files.',
  })
  const certificates = new Gauge({
    name: 'imds_api_certificate_end_seconds',
    registers,
    labelNames: ['listener'] as const,
    help: 'When the certificate of a listener ends, in seconds since 1970: clients, hypervisors.',
  })
  let reading: Promise<Awaited<ReturnType<typeof readAll>> | undefined> | undefined
  const readAll = async () => ({
    outbox: await readOutbox(background.db),
    queue: await readQueue(background.db),
    pools: await readPools(background.db),
    ram: ramForServers(await placedHypervisors(background.db)),
  })
  /** All metrics of a scrape share these queries. Undefined: the database is unreachable. */
  const read = () =>
    (reading ??= readAll()
      .catch(() => undefined)
      .finally(() => {
        reading = undefined
      }))
  const gauge = (name: string, help: string, value: () => number | undefined | Promise<number | undefined>) =>
    new Gauge({
      name,
      help,
      registers,
      async collect() {
        const now = await value()
        if (now === undefined) this.remove()
        else this.set(now)
      },
    })
  gauge('imds_api_ready', '1: the database answers, so requests are served.', async () =>
    (await read()) === undefined ? 0 : 1,
  )
  gauge('imds_api_outbox_servers', 'Servers that wait to be published.', async () => (await read())?.outbox.length)
  gauge(
    'imds_api_outbox_age_seconds',
    'How long the oldest change has waited to be published; 0: none waits.',
    async () => (await read())?.outbox.age,
  )
  gauge(
    'imds_api_refused_servers',
    'Servers whose record the store refuses. Their guests see the last published state.',
    async () => (await read())?.outbox.faulty,
  )
  gauge(
    'imds_api_compute_actions',
    'Actions on servers that wait for their outcome.',
    async () => (await read())?.queue.waiting,
  )
  gauge(
    'imds_api_compute_age_seconds',
    'How long the oldest of them has waited; 0: none waits.',
    async () => (await read())?.queue.age,
  )
  gauge(
    'imds_api_compute_unfetched_seconds',
    'How long an action that its hypervisor could fetch has not been fetched; 0: none waits for that.',
    async () => (await read())?.queue.unfetched,
  )
  gauge(
    'imds_api_database_connections',
    'Open connections to the database: for requests, and for everything else.',
    () => pool.totalCount + background.pool.totalCount,
  )
  const poolGauge = (name: string, help: string, value: (pools: PoolsOfKind) => number) =>
    new Gauge({
      name,
      help: `${help}, by kind: mac, private_ipv4, public_ipv4, public_ipv6.`,
      registers,
      labelNames: ['kind'] as const,
      async collect() {
        this.reset()
        for (const pools of (await read())?.pools ?? []) this.set({ kind: pools.kind }, value(pools))
      },
    })
  poolGauge('imds_api_pool_addresses', 'Addresses of the pools', ({ addresses }) => addresses)
  poolGauge('imds_api_pool_free_addresses', 'Free addresses of the pools', ({ free }) => free)
  gauge('imds_api_ram_bytes', 'RAM of the hypervisors that get new servers.', async () => (await read())?.ram.all)
  gauge(
    'imds_api_ram_free_bytes',
    'RAM of these hypervisors that no server uses.',
    async () => (await read())?.ram.free,
  )
  gauge('imds_api_database_waiting', 'Requests that wait for a connection to the database.', () => pool.waitingCount)
  return {
    registry,
    responded: (route, method, status) => {
      requests.inc({ route, method, status })
    },
    unreadable: (reason) => {
      unreadable.inc({ reason })
    },
    closed: (reason) => {
      closed.inc({ reason })
    },
    published: (result) => {
      publishes.inc({ result })
    },
    invited: (result) => {
      invitations.inc({ result })
    },
    actionFinished: (outcome) => {
      actions.inc({ outcome })
    },
    unannounced: (hypervisors) => {
      unannounced.set(hypervisors)
    },
    streamEnded: (reason) => {
      streamEnds.inc({ reason })
    },
    countStreams: (count) => {
      gauge('imds_api_event_streams', 'Open streams of events.', count)
    },
    certificate: (listener, pem) => {
      certificates.set({ listener }, new X509Certificate(pem).validToDate.getTime() / 1000)
    },
  }
}

/** The servers that wait to be published. `age`: of the oldest change, in seconds. `faulty`: those that the store refuses. */
export interface Outbox {
  readonly length: number
  readonly age: number
  readonly faulty: number
}

/** Reads the outbox. */
export async function readOutbox(db: Database['db']): Promise<Outbox> {
  const {
    rows: [row],
  } = await sql<Outbox>`
    select count(distinct server_id) as length, coalesce(extract(epoch from now() - min(created_at)), 0)::float as age,
      count(distinct server_id) filter (where retry_at is not null) as faulty
    from outbox`.execute(db)
  return row!
}
