/**
 * How checks look at this hypervisor from inside the daemon: at its own state, without another process, a file or the
 * store, since guests would wait. It is for the checks of OF_DAEMON (imdsd/checks/checks.ts).
 */
import type { Registry } from 'prom-client'
import type { CheckedConfig, HostState, MetricValues } from './checks/host-state.ts'
import type { Readiness } from './operator/documents.ts'
import { isOurs } from '../runtime/addresses.ts'
import type { HostPort } from '../runtime/host-port.ts'
import { VERSION } from '../runtime/version.ts'
import type { GuestAddress } from './listeners.ts'
import type { StateWatch } from './state-watch.ts'

/** What the checks see. `operator`: the operators' listener on TCP. */
export interface InsideParts {
  readonly config: CheckedConfig & { readonly operatorSocket: string }
  readonly guests: readonly GuestAddress[]
  readonly operator: () => HostPort
  readonly readiness: () => Readiness
  readonly registry: Pick<Registry, 'getSingleMetric'>
  readonly state: Pick<StateWatch, 'file' | 'freeBytes'>
}

/** The metrics that these checks read. */
const METRICS = [
  'process_open_fds',
  'process_max_fds',
  'imds_connections_dropped_total',
  'imds_journal_writes_total',
  'imds_snapshot_writes_total',
  'imds_clock_set_back_total',
]
const UNSEEN = 'the daemon does not look at it'

/** Builds the look. */
export function lookInside({ config, guests, operator, readiness, registry, state }: InsideParts): HostState {
  return {
    settings: { faults: [], notes: [], unknown: [], variables: {}, config },
    version: VERSION,
    isRoot: false,
    operatorSocket: config.operatorSocket,
    run: () => Promise.resolve(undefined),
    file: (path) => state.file(path),
    freeBytes: () => state.freeBytes,
    hasAddress: isOurs,
    readiness: () => Promise.resolve({ ok: true, value: readiness() }),
    metrics: async () => ({ ok: true, value: await readMetrics(registry) }),
    // No check of OF_DAEMON looks at guests.
    firewall: () => {
      const { host: address, port } = operator()
      const listeners = guests.map((place) => ({ network: place.network, address: place.host, port: place.port }))
      return Promise.resolve({
        ok: true,
        value: { version: '', link: '', listeners, operator: { address, port }, limitedDscp: 1, guests: [] },
      })
    },
    store: () => Promise.resolve(undefined),
    snapshot: () => Promise.resolve({ kind: 'unreadable', reason: UNSEEN }),
  }
}

/** The values of METRICS by name, with their labels as Prometheus prints them. */
async function readMetrics(registry: InsideParts['registry']): Promise<MetricValues> {
  const metrics = new Map<string, number>()
  for (const name of METRICS) {
    for (const { labels, value } of (await registry.getSingleMetric(name)?.get())?.values ?? []) {
      const pairs = Object.entries(labels).map(([label, text]) => `${label}="${String(text)}"`)
      metrics.set(pairs.length === 0 ? name : `${name}{${pairs.join(',')}}`, value)
    }
  }
  return metrics
}
