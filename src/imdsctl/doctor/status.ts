/** What `imdsctl status` prints: the state of the daemon, and the rates between two looks at its metrics. */
import type { Readiness } from '../../imdsd/operator/documents.ts'
import { formatDuration } from '../../runtime/ago.ts'
import type { Cell } from '../../runtime/terminal.ts'
import { formatFirewall } from '../../imdsd/operator/readiness.ts'
import { STYLES } from '../../runtime/check.ts'
import { ratesBetween, runningVersion, type Sample } from '../../runtime/metric-values.ts'

/** The state of a daemon. Rates are per second; `meanMs` undefined: no request came. */
export interface DaemonStatus {
  readonly version: string | undefined
  readonly uptimeSeconds: number
  readonly readiness: Readiness
  readonly requestsPerSecond: number
  readonly refusalsPerSecond: number
  /** By reason, the most frequent first. */
  readonly refusals: Readonly<Record<string, number>>
  readonly droppedConnectionsPerSecond: number
  readonly meanMs: number | undefined
  readonly cpuPercent: number
  readonly residentBytes: number
  readonly openDescriptors: number
  readonly mostDescriptors: number
}

/** Builds the status from two samples. `nowSeconds`: since 1970. A daemon that was restarted in between has no rates. */
export function buildStatus(readiness: Readiness, before: Sample, after: Sample, nowSeconds: number): DaemonStatus {
  const rate = ratesBetween(before, after)
  const isRequest = (name: string) => name.startsWith('imds_requests_total{')
  const isRefusal = (name: string) => isRequest(name) && !name.includes('reason="served"')
  const reasons = new Set(
    [...after.metrics.keys()].filter(isRefusal).map((name) => /reason="([^"]*)"/.exec(name)?.[1] ?? ''),
  )
  const refusals = [...reasons]
    .map((reason) => [reason, rate((name) => isRefusal(name) && name.includes(`reason="${reason}"`))] as const)
    .filter(([, perSecond]) => perSecond > 0)
    .sort(([, a], [, b]) => b - a)
  const [took, counted] = (['sum', 'count'] as const).map((part) =>
    rate((name) => name.startsWith(`imds_request_duration_seconds_${part}{`)),
  ) as [number, number]
  const last = (name: string) => after.metrics.get(name) ?? 0
  return {
    version: runningVersion(after.metrics),
    uptimeSeconds: Math.max(
      0,
      Math.round(nowSeconds - (after.metrics.get('process_start_time_seconds') ?? nowSeconds)),
    ),
    readiness,
    requestsPerSecond: rate(isRequest),
    refusalsPerSecond: rate(isRefusal),
    refusals: Object.fromEntries(refusals),
    droppedConnectionsPerSecond: rate((name) => name.startsWith('imds_connections_dropped_total{')),
    meanMs: counted > 0 ? (took / counted) * 1000 : undefined,
    cpuPercent: rate((name) => name === 'process_cpu_seconds_total') * 100,
    residentBytes: last('process_resident_memory_bytes'),
    openDescriptors: last('process_open_fds'),
    mostDescriptors: last('process_max_fds'),
  }
}

export function statusRows(status: DaemonStatus): (readonly Cell[])[] {
  const { readiness, refusals, meanMs } = status
  const { ready, instances, faulty, absent, contestedAddresses, viewAgeSeconds, connected, firewall } = readiness
  const perSecond = (rate: number) => `${rate.toFixed(1)}/s`
  const started = `${ready ? 'ready' : 'not ready'}, started ${formatDuration(status.uptimeSeconds)} ago`
  const compared = `compared ${formatDuration(viewAgeSeconds)} ago`
  const why = Object.entries(refusals).map(([reason, rate]) => `${reason} ${perSecond(rate)}`)
  const refused = `refused ${perSecond(status.refusalsPerSecond)}${why.length > 0 ? ` (${why.join(', ')})` : ''}`
  const mean = meanMs === undefined ? '' : `, ${meanMs.toFixed(2)} ms each`
  const dropped = `dropped connections ${perSecond(status.droppedConnectionsPerSecond)}`
  const used = `${(status.residentBytes / 2 ** 20).toFixed(0)} MiB, ${status.cpuPercent.toFixed(1)} % of a CPU`
  const attention = `faulty ${faulty}, absent ${absent}, contested addresses ${contestedAddresses}`
  return [
    [
      'imdsd',
      { text: `${status.version ?? '(unknown version)'}, ${started}`, style: ready ? STYLES.ok : STYLES.failure },
    ],
    ['store', `${readiness.store}, ${connected ? 'connected' : 'not connected'}, ${compared}`],
    ['instances', `${instances}; ${attention}`],
    ['requests', `${perSecond(status.requestsPerSecond)}, ${refused}${mean}; ${dropped}`],
    ['firewall', formatFirewall(firewall)],
    ['process', `${used}, ${status.openDescriptors} of ${status.mostDescriptors} descriptors`],
  ]
}
