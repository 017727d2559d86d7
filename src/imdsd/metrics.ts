/**
 * Declares every metric, with its help text. Counters on the path of a request are plain numbers in the RequestMeter,
 * which is read when Prometheus scrapes.
 */
import { Counter, type Metric, type Registry } from 'prom-client'
import type { FoundCondition } from '../conditions/condition.ts'
import { declareConditions } from '../conditions/metric.ts'
import { CONDITIONS } from './conditions/table.ts'
import { packetsByName } from './firewall/counters.ts'
import type { Firewall } from './firewall/firewall.ts'
import type { HeldRequests } from './guest/held-requests.ts'
import { DURATION_BOUNDS, type RequestMeter } from './guest/meter.ts'
import { FAULT_REASONS } from './view/validate.ts'
import type { SyncMetrics } from './view/resync.ts'
import type { Sync } from './view/sync.ts'
import type { View } from './view/view.ts'
import { buildRegistry, gaugesOf, labelled } from '../runtime/metrics.ts'

/** What the metrics are read from. */
export interface MetricsSources {
  readonly view: Pick<View, 'size'>
  readonly meter: RequestMeter
  /** Requests that wait for a change. */
  readonly held: Pick<HeldRequests, 'size'>
  readonly sync: Pick<Sync, 'status'>
  readonly firewall: Pick<Firewall, 'packets'>
  readonly viewAgeSeconds: () => number
  readonly conditions: () => readonly FoundCondition[]
}

/** The registry, and the counters that other parts increment. */
export class Metrics {
  readonly registry = buildRegistry()
  readonly sync = declareSync(this.registry)
  readonly journalRewrites = labelled(this.registry, 'result', ['written', 'failed'], {
    name: 'imds_journal_rewrites_total',
    help: 'Rewrites of the journal with the whole view, by result.',
  })
  readonly journalWrites = labelled(this.registry, 'result', ['written', 'failed'], {
    name: 'imds_journal_writes_total',
    help: 'Writes of changes to the journal, by result.',
  })
  readonly reportWrites = labelled(this.registry, 'result', ['written', 'failed'], {
    name: 'imds_report_writes_total',
    help: 'Writes of the reports of guests to the store, by result.',
  })
  readonly lookups = labelled(this.registry, 'result', ['found', 'unknown', 'failed', 'skipped'], {
    name: 'imds_peer_lookups_total',
    help:
      'Lookups of unknown peers in the store: found, unknown (no instance of this hypervisor), failed ' +
      '(no answer within a second), or skipped (rate limit).',
  })

  /** Declares the metrics that are read from `sources`. */
  setSources(sources: MetricsSources): void {
    declareRequests(this.registry, sources)
    declarePackets(this.registry, sources)
    declareConnections(this.registry, sources)
    declareView(this.registry, sources)
    declareConditions(this.registry, CONDITIONS, sources.conditions)
  }
}

function declareSync(registry: Registry): SyncMetrics {
  return {
    notices: new Counter({
      name: 'imds_notices_total',
      help: 'Notices from the store: an instance may have changed.',
      registers: [registry],
    }),
    resyncs: labelled(registry, 'result', ['completed', 'failed', 'uninitialised'], {
      name: 'imds_resyncs_total',
      help: 'Full comparisons with the store: completed, failed, or uninitialised (the store has nothing of this region).',
    }),
    recordFaults: labelled(registry, 'reason', FAULT_REASONS, {
      name: 'imds_record_faults_total',
      help: 'Faulty records that were loaded, by reason. Each faulty state counts once.',
    }),
  }
}

function declareRequests(registry: Registry, { meter }: MetricsSources): void {
  new Counter({
    name: 'imds_requests_total',
    help: 'Requests, by kind of path, method, status and reason ("served", or the reason of the refusal).',
    registers: [registry],
    labelNames: ['route', 'method', 'status', 'reason'] as const,
    collect() {
      this.reset()
      for (const { count, ...labels } of meter.counts()) this.inc(labels, count)
    },
  })
  registry.registerMetric(requestDurations(meter))
}

function declareConnections(registry: Registry, { meter }: MetricsSources): void {
  readLabelled(registry, 'reason', () => meter.drops, {
    name: 'imds_connections_dropped_total',
    help:
      'Connections of guests that were closed without a response: no file descriptors left (descriptors), far beyond ' +
      'the share (over-share), the address is lost (owner-changed), unread responses or bytes without a request (stalled).',
  })
  readLabelled(registry, 'session', () => meter.sessions, {
    name: 'imds_session_requests_total',
    help: 'Requests for metadata: with a valid session token (token), without one (none), or refused.',
  })
  new Counter({
    name: 'imds_forwarded_requests_total',
    help: 'Requests with X-Forwarded-For or Forwarded, refused or not.',
    registers: [registry],
    collect() {
      this.reset()
      this.inc(meter.forwards)
    },
  })
}

function declareView(registry: Registry, { view, held, viewAgeSeconds, sync }: MetricsSources): void {
  const gauge = gaugesOf(registry)
  gauge('imds_view_instances', 'Instances that this hypervisor serves.', () => view.size)
  gauge('imds_held_requests', 'Requests that wait for a change (contract H1).', () => held.size)
  gauge(
    'imds_view_age_seconds',
    'Time since the last full comparison with the store, even before a restart; without any, since the start.',
    viewAgeSeconds,
  )
  gauge(
    'imds_resync_duration_seconds',
    'Duration of the last completed full comparison with the store.',
    () => sync.status().resyncTookMs / 1000,
  )
  gauge(
    'imds_view_absent_instances',
    'Instances that are served although the store no longer has them.',
    () => sync.status().absent,
  )
  gauge('imds_view_faulty_records', 'Records for this hypervisor that are faulty now.', () => sync.status().faulty)
}

/** A counter whose series are read when Prometheus scrapes. Before that it has none. */
function readLabelled(
  registry: Registry,
  label: string,
  read: () => Readonly<Record<string, number>> | undefined,
  about: { readonly name: string; readonly help: string },
): void {
  new Counter({
    ...about,
    registers: [registry],
    labelNames: [label],
    collect() {
      this.reset()
      for (const [value, count] of Object.entries(read() ?? {})) this.inc({ [label]: value }, count)
    },
  })
}

/**
 * The counters of the firewall. They have no series before the agent has reported them: the kernel counts on while the
 * daemon restarts, and a series that begins with 0 would then show all of that as one increase.
 */
function declarePackets(registry: Registry, { firewall }: MetricsSources): void {
  const read = () => {
    const packets = firewall.packets()
    return packets && packetsByName(packets)
  }
  readLabelled(registry, 'result', read, {
    name: 'imds_firewall_packets_total',
    help:
      'Packets that the firewall admitted, or kept out: from a link, MAC and source address of no ' +
      'instance (unknown-peers), new connections beyond the rate limit (too-many), fragments, responses ' +
      "whose guest has gone (strays), and to the operators' listener (operators).",
  })
}

/**
 * A histogram whose buckets are in the meter. prom-client cannot set the buckets of its own histograms, but reads any
 * metric by `get`.
 */
function requestDurations(meter: RequestMeter): Metric {
  const name = 'imds_request_duration_seconds'
  const get = () =>
    Promise.resolve({
      name,
      type: 'histogram',
      aggregator: 'sum',
      help: 'Time from the headers of a request to its response, by kind of path.',
      values: meter.durations().flatMap(({ route, cumulative, count, sumSeconds }) => [
        ...cumulative.map((value, i) => ({
          value,
          labels: { route, le: DURATION_BOUNDS[i] },
          metricName: `${name}_bucket`,
        })),
        { value: count, labels: { route, le: '+Inf' }, metricName: `${name}_bucket` },
        { value: sumSeconds, labels: { route }, metricName: `${name}_sum` },
        { value: count, labels: { route }, metricName: `${name}_count` },
      ]),
    })
  return { name, get } as unknown as Metric
}
