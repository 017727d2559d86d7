/** The operators' side of imdsd: its listeners, and what they show. */
import type { FoundCondition } from '../conditions/condition.ts'
import { buildPageTurns } from '../pages/page-turns.ts'
import { formatMissing, type AddressWatch } from './address-watch.ts'
import type { HostPort } from '../runtime/host-port.ts'
import { maxOperatorConnections, readLimits } from '../runtime/listen.ts'
import type { ServedInstance } from './view/served-instance.ts'
import type { BackgroundParts } from './guest-side.ts'
import type { Metrics } from './metrics.ts'
import { buildDiagnosis } from './operator/diagnosis.ts'
import { explain, explainInstance } from './operator/explain.ts'
import { buildLaunchGate, unreachableBy } from './operator/launch-gate.ts'
import { OperatorListener } from './operator/listener.ts'
import { buildReadiness } from './operator/readiness.ts'
import { buildHistory, INTERVAL_MS } from './operator/page/history.ts'
import { formatPage } from './operator/page/page.ts'
import { reportsOf } from './operator/reports.ts'
import { requestsOf } from './operator/requests.ts'
import { buildSocketServer, buildTcpServer, type OperatorParts } from './operator/server.ts'
import type { StoreSide } from './store-side.ts'

interface OperatorSideParts extends Omit<BackgroundParts, 'disk'> {
  readonly storeSide: StoreSide
  readonly metrics: Metrics
  readonly addresses: AddressWatch
  readonly conditions: () => readonly FoundCondition[]
}

/** The listeners of the operator API, and what runs for them. */
interface OperatorSide {
  /** Opens the listeners, or tries again later. The address of the one on TCP, if it is open. */
  readonly start: () => Promise<HostPort | undefined>
  readonly stop: () => Promise<void>
  /** The path of the unix socket; undefined while it is not open. */
  readonly socketPath: () => string | undefined
  /** Why a listener of operators is not open. */
  readonly problems: () => readonly string[]
}

export function buildOperatorSide(parts: OperatorSideParts): OperatorSide {
  const { config, log, now, guestSide, storeSide, metrics, addresses, conditions } = parts
  const { view, requests, guests, finder } = guestSide
  const { source, sync, firewall } = storeSide
  const networks = [...new Set(config.listen.map(({ network }) => network))]
  const unreachable = unreachableBy(guests, () => addresses.missing(), formatMissing)
  const requestsParts = { requests, now, wall: () => Date.now() }
  const diagnosis = buildDiagnosis({
    view,
    source,
    sync,
    networks,
    hypervisor: config.store.hypervisor,
    userDataMaxBytes: config.userDataMaxBytes,
    wall: () => Date.now(),
    now,
    conditions,
  })
  const explainParts = {
    view,
    firewall,
    listeners: guests.map(({ network, host }) => ({ network, host })),
    firewallWait: () => finder.firewallWait,
    diagnosis,
    unreachable,
    requests: (served: ServedInstance) => requestsOf(requestsParts, served),
  }
  const readiness = () => buildReadiness({ ...storeSide, view, conditions })
  const history = buildHistory(guestSide.meter, now)
  let sampling: NodeJS.Timeout | undefined
  const turns = buildPageTurns()
  const pageParts = {
    ...requestsParts,
    view,
    hypervisor: config.store.hypervisor,
    startedMs: now(),
    networks,
    readiness,
    history,
  }
  const operatorParts: OperatorParts = {
    firewall,
    metrics: metrics.registry,
    readiness,
    page: (question) => turns.take(() => formatPage(pageParts, question)),
    launchGate: buildLaunchGate({ view, firewall, networks, unreachable }),
    reports: (id) => reportsOf(guestSide, id),
    explain: (network, address) => explain(explainParts, network, address),
    explainInstance: (id) => explainInstance(explainParts, id),
    diagnose: (id) => diagnosis.instance(id),
  }
  const maxConnections = maxOperatorConnections(readLimits())
  const { allow, ...listener } = config.operator
  const tcp = new OperatorListener<HostPort>({
    server: buildTcpServer(operatorParts, { allow, maxConnections, now, log }),
    listener,
    variable: 'IMDS_OPERATOR_LISTEN',
  })
  const socket = new OperatorListener({
    server: buildSocketServer(operatorParts, maxConnections),
    listener: { path: config.operatorSocket },
    variable: 'IMDS_OPERATOR_SOCKET',
  })
  return {
    start: async () => {
      sampling = setInterval(() => history.sample(), INTERVAL_MS)
      await tcp.start()
      await socket.start()
      return tcp.address
    },
    stop: async () => {
      clearInterval(sampling)
      const stopping = [tcp.stop(), socket.stop()]
      await Promise.allSettled(stopping)
      await Promise.all(stopping) // rejects if one could not stop
    },
    socketPath: () => socket.address?.path,
    problems: () => [tcp.problem, socket.problem].filter((problem) => problem !== undefined),
  }
}
