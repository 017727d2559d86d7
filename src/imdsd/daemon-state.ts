/**
 * How checks look at this hypervisor from inside the daemon: at its own state, without another process, a file or the
 * store, since guests would wait.
 */
import type { Registry } from 'prom-client'
import type { CheckedConfig, DaemonState } from './checks/hypervisor-state.ts'
import type { MetricValues } from '../runtime/metric-values.ts'
import type { Readiness } from './operator/documents.ts'
import { isOurs } from './address-watch.ts'
import type { HostPort } from '../runtime/host-port.ts'
import type { GuestAddress } from './listeners.ts'
import type { StateWatch } from './state-watch.ts'

/** What the checks see. `operator`: the operators' listener on TCP. */
export interface DaemonStateParts {
  readonly config: CheckedConfig
  readonly guests: readonly GuestAddress[]
  readonly operator: () => HostPort
  readonly readiness: () => Readiness
  readonly registry: Pick<Registry, 'getSingleMetric'>
  readonly state: Pick<StateWatch, 'file' | 'freeBytes'>
}

const METRICS = [
  'process_open_fds',
  'process_max_fds',
  'imds_connections_dropped_total',
  'imds_journal_writes_total',
  'imds_journal_rewrites_total',
  'imds_state_writes_failing',
  'imds_clock_set_back_total',
]

export function buildDaemonState({
  config,
  guests,
  operator,
  readiness,
  registry,
  state,
}: DaemonStateParts): DaemonState {
  return {
    settings: { faults: [], notes: [], unknown: [], variables: {}, replaced: [], config },
    run: () => Promise.resolve(undefined),
    file: (path) => state.file(path),
    freeBytes: () => state.freeBytes,
    hasAddress: isOurs,
    readiness: () => Promise.resolve({ ok: true, value: readiness() }),
    metrics: async () => ({ ok: true, value: await readMetrics(registry) }),
    listeners: () => {
      const { host: address, port } = operator()
      const listeners = guests.map((guest) => ({ network: guest.network, address: guest.host, port: guest.port }))
      return Promise.resolve({ ok: true, value: { listeners, operator: { address, port } } })
    },
  }
}

/** The values of METRICS by name, with their labels as Prometheus prints them. */
async function readMetrics(registry: DaemonStateParts['registry']): Promise<MetricValues> {
  const metrics = new Map<string, number>()
  for (const name of METRICS) {
    for (const { labels, value } of (await registry.getSingleMetric(name)?.get())?.values ?? []) {
      const pairs = Object.entries(labels).map(([label, text]) => `${label}="${String(text)}"`)
      metrics.set(pairs.length === 0 ? name : `${name}{${pairs.join(',')}}`, value)
    }
  }
  return metrics
}
