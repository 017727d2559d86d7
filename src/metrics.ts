/**
 * Every metric that we export, declared once, with its help text. Counters that stand on a request's path are plain numbers in the
 * guest side's meter; they are read out when Prometheus asks.
 */
import { collectDefaultMetrics, Counter, Gauge, Registry, type Metric } from 'prom-client'
import { DURATION_BOUNDS, type RequestMeter } from './guest/meter.ts'
import { FAULT_REASONS } from './view/validate.ts'
import type { SyncMetrics, SyncStatus } from './view/sync.ts'
import { VERSION } from './version.ts'

/** What the gauges are read from. */
export interface MetricsSources {
  readonly meter: RequestMeter
  readonly instances: () => number
  readonly contested: () => number
  readonly sync: () => SyncStatus
  readonly viewAgeSeconds: () => number
  readonly firewall: () => { readonly required: boolean, readonly ageSeconds: number, readonly refused: number }
  readonly missingAddresses: () => number
}

/** The registry, and the counters that following the store moves. */
export interface Metrics {
  readonly registry: Registry
  readonly sync: SyncMetrics
  readonly snapshotWrites: Counter<'result'>
  readonly clockSetBacks: Counter
  readonly lookups: Counter<'result'>
  readonly readFrom: (sources: MetricsSources) => void
}

/** Declares all metrics. The gauges come with `readFrom`, once there is something to read from. */
export function buildMetrics(): Metrics {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })

  new Gauge({ name: 'imds_build_info', help: 'Always 1; the labels are the versions of imds and of Node.', labelNames: ['version', 'node'], registers })
    .set({ version: VERSION, node: process.versions.node }, 1)

  const sync = {
    notices: new Counter({ name: 'imds_notices_total', help: 'Notices from the store that an instance may have changed.', registers }),
    resyncs: new Counter({ name: 'imds_resyncs_total', help: 'Full comparisons with the store: completed, failed (it did not answer), or uninitialised (it holds nothing of this region).', labelNames: ['result'] as const, registers }),
    recordFaults: new Counter({ name: 'imds_record_faults_total', help: 'Faulty records met, by reason; each state of a record counts once. The last good one stays.', labelNames: ['reason'] as const, registers }),
    revisionsBack: new Counter({ name: 'imds_revisions_back_total', help: 'Records that the store took back to an older revision.', registers }),
  }
  const snapshotWrites = new Counter({
    name: 'imds_snapshot_writes_total', help: 'Writes of the view to the state directory: written or failed.', labelNames: ['result'] as const, registers,
  })
  const clockSetBacks = new Counter({ name: 'imds_clock_set_back_total', help: 'Times that the clock was found to have been set back by more than a minute.', registers })
  const lookups = new Counter({
    name: 'imds_peer_lookups_total', registers, labelNames: ['result'] as const,
    help: 'Look-ups of unknown addresses in the store: found, unknown (no instance of this hypervisor has it), failed (no answer within a second), or skipped (over the rate, or just answered).',
  })
  for (const result of ['found', 'unknown', 'failed', 'skipped'] as const) lookups.inc({ result }, 0)
  for (const result of ['written', 'failed'] as const) snapshotWrites.inc({ result }, 0)
  for (const result of ['completed', 'failed', 'uninitialised'] as const) sync.resyncs.inc({ result }, 0)
  for (const reason of FAULT_REASONS) sync.recordFaults.inc({ reason }, 0)

  const readFrom = ({ meter, instances, contested, sync: status, viewAgeSeconds, firewall, missingAddresses }: MetricsSources) => {
    const gauge = (name: string, help: string, read: () => number) => new Gauge({ name, help, registers, collect() { this.set(read()) } })
    new Counter({
      name: 'imds_requests_total', help: 'Requests by kind of path, method, status and reason ("served", or why it was refused).', registers,
      labelNames: ['route', 'method', 'status', 'reason'] as const,
      collect() {
        this.reset()
        for (const { count, ...labels } of meter.counts()) this.inc(labels, count)
      },
    })
    registry.registerMetric(requestDurations(meter))
    const counters = <T extends string>(name: string, help: string, label: T, read: () => Readonly<Record<string, number>>) => new Counter({
      name, help, registers, labelNames: [label],
      collect() {
        this.reset()
        for (const [value, count] of Object.entries(read())) this.inc({ [label]: value } as Record<T, string>, count)
      },
    })
    counters('imds_connections_dropped_total', 'Connections of guests that were closed unanswered: the listener held its share of the file descriptors, the guest more than four times its own share, or it pipelined beyond it, or it did not take its answer (stalled).', 'reason', () => meter.drops)
    counters('imds_session_requests_total', 'Requests for metadata with a valid session token, with none, or refused since it was missing or invalid.', 'session', () => meter.sessions)
    new Counter({
      name: 'imds_forwarded_requests_total', help: 'Requests that said that they were forwarded, refused or not.', registers,
      collect() {
        this.reset()
        this.inc(meter.forwards)
      },
    })
    gauge('imds_view_instances', 'Instances that this host answers for.', instances)
    gauge('imds_view_age_seconds', 'Time since the view was last compared with the store, a snapshot\'s own time included; since the start where there never was one.', viewAgeSeconds)
    gauge('imds_resync_duration_seconds', 'How long the last completed comparison with the store took.', () => status().resyncTookMs / 1000)
    gauge('imds_view_unconfirmed_instances', 'Instances that are answered for although the store no longer knows them.', () => status().unconfirmed)
    gauge('imds_view_faulty_records', 'Records of this host that are faulty now.', () => status().faulty)
    gauge('imds_view_contested_addresses', 'Addresses and IPv6 prefixes that more than one instance claims: answered to none.', contested)
    gauge('imds_store_connected', '1 while the store is connected and its notices flow.', () => Number(status().connected))
    gauge('imds_store_unusable', '1 while nearly all records that the store has for this host are faulty (more than 90 %): a wrong record key or version. The last good state is served.', () => Number(status().isStoreUnusable))
    gauge('imds_firewall_age_seconds', 'Time since the firewall last said that its rules are those of the view; 0 where IMDS_FIREWALL is off.', () => firewall().required ? firewall().ageSeconds : 0)
    gauge('imds_firewall_refused_interfaces', 'Interfaces that the firewall has left out of its rules, since nft refuses them.', () => firewall().refused)
    gauge('imds_missing_addresses', 'Addresses of guest listeners that no interface of this host has: no guest reaches them.', missingAddresses)
    gauge('imds_ready', '1 once the first full resync has completed; 0 again while nearly all records of this host in the store are faulty, or an address of a guest listener is missing.', () => Number(status().ready && missingAddresses() === 0))
  }
  return { registry, sync, snapshotWrites, clockSetBacks, lookups, readFrom }
}

/** A histogram whose buckets stand in the meter: prom-client has no way to set one, but asks any metric for its values by `get`. */
function requestDurations(meter: RequestMeter): Metric {
  const name = 'imds_request_duration_seconds'
  const get = () => Promise.resolve({
    name, type: 'histogram', aggregator: 'sum',
    help: 'Time from a request\'s headers being read to its answer being handed to the socket, by kind of path.',
    values: meter.durations().flatMap(({ route, cumulative, count, sumSeconds }) => [
      ...cumulative.map((value, i) => ({ value, labels: { route, le: DURATION_BOUNDS[i] }, metricName: `${name}_bucket` })),
      { value: count, labels: { route, le: '+Inf' }, metricName: `${name}_bucket` },
      { value: sumSeconds, labels: { route }, metricName: `${name}_sum` },
      { value: count, labels: { route }, metricName: `${name}_count` },
    ]),
  })
  return { name, get } as unknown as Metric
}
