/**
 * The composition root of imdsd: builds the parts in order, and stops them in reverse.
 *
 * It starts in two phases, so that guests are served early. The first phase is the guest side, which is small and
 * answers guests from the snapshot. The second phase loads and starts everything else: the store, sync, the firewall,
 * metrics and the operator server.
 */
import { randomBytes } from 'node:crypto'
import { setImmediate as turn } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Config, StoreConfig } from './config.ts'
import type { Firewall } from '../firewall/firewall.ts'
import { LIMITED_DSCP } from '../guest/hop-limit.ts'
import { startGuestSide, type GuestSide } from './guest-side.ts'
import type { Metrics } from './metrics.ts'
import type { OperatorListener } from '../operator/listener.ts'
import type { OperatorParts } from '../operator/server.ts'
import type { StatusPage } from './status-page.ts'
import type { AddressWatch } from '../runtime/addresses.ts'
import { formatHostPort, isReachable, type HostPort, type UnixSocket } from '../runtime/host-port.ts'
import type { AdjustableLevel } from '../runtime/log-level.ts'
import { maxOperatorConnections, readLimits } from '../runtime/listen.ts'
import type { Disk } from '../view/disk.ts'
import { lockState } from '../view/state-lock.ts'
import { snapshotPath } from '../view/state-files.ts'
import type { Announcement } from '../store/redis/source.ts'
import { onlyIds } from '../store/only-ids.ts'
import type { Source } from '../store/source.ts'
import type { RecordCipher } from '../store/crypto/record-cipher.ts'
import type { ReportWriter } from '../view/report-writer.ts'
import type { Sync } from '../view/sync.ts'
import type { ServedInstance, View } from '../view/view.ts'
import { VERSION } from '../runtime/version.ts'

/** How long a change waits for the disk. A busy disk needs a second. */
const DISK_TIMEOUT_MS = 5_000
/** How long a start waits for a daemon with the same state directory to end: a stop takes 1.5 s, and a fold. */
const LOCK_WAIT_MS = 5_000
/** The pause after a report could not be written to the store. */
const REPORT_RETRY_MS = 2_000
/** The pause after the disk has failed. */
const DISK_RETRY_MS = 30_000

/** A running daemon. */
export interface Daemon {
  /** The listeners of guests, in the order of the configuration. */
  readonly guests: readonly HostPort[]
  /** The operators' listener on TCP; undefined if it could not open at the start. */
  readonly operator: HostPort | undefined
  /** Stops accepting connections, completes the requests in flight, and disconnects from the store. */
  stop(): Promise<void>
}

/**
 * Starts a daemon. It answers guests at once from its snapshot; a guest that is not in the snapshot gets 503 until the
 * store has answered. Rejects when a guest listener cannot be opened or another daemon has the state directory, and
 * leaves nothing running.
 */
export async function startDaemon(config: Config, log: Logger, logLevel: AdjustableLevel): Promise<Daemon> {
  const now = () => performance.now()
  const lock = await lockState(config.stateDirectory, LOCK_WAIT_MS, await import('../runtime/kernel-lock.ts'), log)
  try {
    const guestSide = await startGuestSide(config, log, now)
    await turn()
    const daemon = await startBackground(config, log, logLevel, now, guestSide, lock.disk).catch(
      async (error: unknown) => {
        await guestSide.stop()
        throw error
      },
    )
    return {
      ...daemon,
      stop: () =>
        daemon.stop().finally(() => {
          lock.close()
        }),
    }
  } catch (error) {
    lock.close()
    throw error
  }
}

/** Loads and starts everything else, in steps. Guests are answered between two steps. */
async function startBackground(
  config: Config,
  log: Logger,
  logLevel: AdjustableLevel,
  now: () => number,
  guestSide: GuestSide,
  disk: Disk,
): Promise<Daemon> {
  const { view, keys, guests } = guestSide
  const { hypervisor } = config.store
  const { buildMetrics } = await import('./metrics.ts')
  await turn()
  await guestSide.loadIdentity()
  await turn()
  const { ClockWatch, CHECK_INTERVAL_MS } = await import('../runtime/clock.ts')
  const { AddressWatch } = await import('../runtime/addresses.ts')
  const metrics = buildMetrics()
  // No daemon announces itself before sync starts, which is after these are built.
  const lagMs = () => sync.status().lagMs
  const operatorPlace = () => operators.tcp.place
  const announcement = buildAnnouncement(view, lagMs, operatorPlace, log)
  const source = await buildSource(config.store, keys.cipher, config.userDataMaxBytes, announcement)
  await turn()

  const fromSnapshot = view.size
  const reportWriter = await buildReportWriter(config.store, guestSide, source, metrics, log)
  const clock = new ClockWatch({ wall: () => Date.now(), steady: now, setBacks: metrics.clockSetBacks, log })
  clock.reportSetBack(-(guestSide.restored.ageMs ?? 0))
  const { sync, persistence, firewall, viewAgeSeconds } = await buildFollowers(
    config,
    log,
    now,
    guestSide,
    disk,
    source,
    metrics,
    reportWriter,
  )
  guestSide.reports.notifyOf((id) => {
    persistence.reported()
    reportWriter?.reported(id)
  })
  const addresses = new AddressWatch(
    guests.map(({ host }) => host),
    log,
  )
  const operators = await buildOperatorSide({
    config,
    log,
    logLevel,
    now,
    guestSide,
    source,
    metrics,
    sync,
    firewall,
    addresses,
    viewAgeSeconds,
  })
  metrics.readFrom({
    meter: guestSide.meter,
    boots: {
      observeBy: (observe) => {
        guestSide.traces.observeBy(observe)
      },
      settle: () => {
        for (const served of view.instances()) guestSide.traces.of(served)?.settle(now())
      },
    },
    instances: () => view.size,
    heldRequests: () => guestSide.held.size,
    contested: () => view.contested().size,
    sync: () => sync.status(),
    viewAgeSeconds,
    firewall: () => firewall.status(),
    packets: () => firewall.packets(),
    missingAddresses: () => addresses.missing().length,
    unservedNetworks: () => config.unserved.length,
    listenerProblems: () => operators.listenerProblems().length,
  })

  const clockChecks = setInterval(() => {
    clock.check()
  }, CHECK_INTERVAL_MS)
  const stop = async () => {
    clearInterval(clockChecks)
    addresses.stop()
    firewall.stop()
    operators.statusPage.stop()
    await Promise.all([guestSide.stop(), operators.tcp.stop(), operators.socket.stop()])
    await reportWriter?.stop()
    await sync.stop()
    await persistence.stop()
  }
  try {
    operators.statusPage.start()
    await operators.tcp.start()
    await operators.socket.start()
    const operator = operators.tcp.place
    const { host: address, port } = operator ?? config.operator
    const listeners = guests.map(({ network, host, port }) => ({ network, address: host, port }))
    firewall.listens({ listeners, operator: { address, port }, limitedDscp: LIMITED_DSCP })
    if (fromSnapshot > 0 && guestSide.restored.isWhole) firewall.completed()
    await addresses.start()
    sync.start()
    const recordKeys = keys.cipher?.names ?? []
    log.info(
      {
        guests: guests.map(formatHostPort),
        operator: operator && formatHostPort(operator),
        operatorSocket: operators.socket.place?.path,
        store: source.description,
        hypervisor,
        recordKeys,
        fromSnapshot,
      },
      'listening',
    )
    return { guests, operator, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/**
 * Builds the parts that follow the store and the view: sync, the files of the view and the firewall. Enables lookups of
 * unknown peers.
 */
async function buildFollowers(
  config: Config,
  log: Logger,
  now: () => number,
  guestSide: GuestSide,
  disk: Disk,
  source: Source,
  metrics: Metrics,
  reportWriter: ReportWriter | undefined,
) {
  const { view, keys, restored, reports } = guestSide
  const [{ Firewall }, { Sync }, { PeerLookup }, { Persistence }] = await Promise.all([
    import('../firewall/firewall.ts'),
    import('../view/sync.ts'),
    import('../view/peer-lookup.ts'),
    import('../view/persistence.ts'),
  ])
  const persistence = new Persistence({
    disk,
    path: snapshotPath(config.stateDirectory),
    owner: guestSide.owner,
    keys,
    restored,
    maxAgeMs: config.snapshotMaxAgeMs,
    timeoutMs: DISK_TIMEOUT_MS,
    retryMs: DISK_RETRY_MS,
    asOfMs: Date.now() - (restored.ageMs ?? 0),
    instances: () =>
      view.instances().map((served) => {
        const { instance, userData, digest } = served
        return { instance, userData, digest, reports: reports.of(served) }
      }),
    snapshotWrites: metrics.snapshotWrites,
    journalWrites: metrics.journalWrites,
    log,
  })
  const instances = () => view.instances().map(({ instance }) => instance)
  const epoch = randomBytes(4).toString('hex')
  const firewall = new Firewall({
    ...config.firewall,
    instances,
    now,
    epoch,
    firstApplied: () => {
      guestSide.admit()
    },
    log,
  })
  const sync = new Sync({
    source,
    view,
    changeLog: persistence,
    hypervisor: config.store.hypervisor,
    userDataMaxBytes: config.userDataMaxBytes,
    resyncMs: config.resyncMs,
    metrics: metrics.sync,
    log,
    changed: () => {
      firewall.changed()
    },
    confirmed: () => {
      guestSide.traces.complete(now())
      firewall.completed()
      persistence.confirmed()
      reportWriter?.wake()
    },
  })
  const startedAtMs = now() - Math.max(0, restored.ageMs ?? now())
  const peerLookup = new PeerLookup({
    find: (network, address) => view.find(network, address),
    lookUp: (network, address) => sync.lookUp(network, address),
    canAsk: () => sync.status().connected,
    lookups: metrics.lookups,
    now,
  })
  guestSide.lookUpBy((network, address) => peerLookup.ask(network, address))
  return {
    sync,
    persistence,
    firewall,
    viewAgeSeconds: () => (now() - (sync.status().resyncedAtMs ?? startedAtMs)) / 1000,
  }
}

/** Builds what writes to the store what guests report. Undefined: the store keeps no reports. */
async function buildReportWriter(
  { hypervisor }: StoreConfig,
  { view, reports, ...guestSide }: GuestSide,
  { reports: store }: Source,
  { reportWrites: writes }: Metrics,
  log: Logger,
): Promise<ReportWriter | undefined> {
  if (store === undefined || hypervisor === undefined) return undefined
  const { ReportWriter } = await import('../view/report-writer.ts')
  const find = (id: string) => view.get(id)
  const restored = view
    .instances()
    .filter((served) => reports.of(served) !== undefined)
    .map(({ instance }) => instance.id)
  const writer = new ReportWriter({ store, hypervisor, find, reports, restored, writes, retryMs: REPORT_RETRY_MS, log })
  guestSide.changesTo((id) => {
    writer.changed(id)
  })
  return writer
}

interface OperatorSideParts {
  readonly config: Config
  readonly log: Logger
  readonly logLevel: AdjustableLevel
  readonly now: () => number
  readonly guestSide: GuestSide
  readonly source: Source
  readonly metrics: Metrics
  readonly sync: Sync
  readonly firewall: Firewall
  readonly addresses: AddressWatch
  readonly viewAgeSeconds: () => number
}

/**
 * The listeners of the operator API, and a sentence for each listener, of guests or operators, that does not answer.
 */
interface OperatorSide {
  readonly tcp: OperatorListener<HostPort>
  readonly socket: OperatorListener<UnixSocket>
  readonly listenerProblems: () => readonly string[]
  readonly statusPage: StatusPage
}

/** Builds the listeners of the operator API. */
async function buildOperatorSide(parts: OperatorSideParts): Promise<OperatorSide> {
  const { config, log, logLevel, now, guestSide, source, metrics, sync, firewall, addresses, viewAgeSeconds } = parts
  const { view, traces, guests, hold } = guestSide
  const [
    { buildSocketServer, buildTcpServer },
    { explain, explainInstance },
    { recentRequests, traceOf },
    { reportsOf },
    { buildDiagnosis },
    { buildLaunchGate, unreachableBy },
    { buildReadiness },
    { formatMissing },
    { OperatorListener },
    { buildStatusPage },
  ] = await Promise.all([
    import('../operator/server.ts'),
    import('../operator/explain.ts'),
    import('../operator/trace.ts'),
    import('../operator/reports.ts'),
    import('../operator/diagnosis.ts'),
    import('../operator/launch-gate.ts'),
    import('../operator/readiness.ts'),
    import('../runtime/addresses.ts'),
    import('../operator/listener.ts'),
    import('./status-page.ts'),
  ])
  const networks = [...new Set(config.listen.map(({ network }) => network))]
  const unreachable = unreachableBy(guests, () => addresses.missing(), formatMissing)
  const traceParts = { view, traces, now, wall: () => Date.now() }
  /** What a listener needs. Each has a rate limit of its own for questions to the store. */
  const partsOfListener = (): OperatorParts => {
    const diagnosis = buildDiagnosis({
      view,
      source,
      sync,
      networks,
      hypervisor: config.store.hypervisor,
      userDataMaxBytes: config.userDataMaxBytes,
      now,
    })
    const explainParts = {
      view,
      firewall,
      networks,
      unserved: config.unserved,
      hold,
      diagnosis,
      unreachable,
      recent: (served: ServedInstance) => recentRequests(traceParts, served),
    }
    return {
      ...operatorParts,
      explain: (network, address) => explain(explainParts, network, address),
      explainInstance: (id) => explainInstance(explainParts, id),
      diagnose: (id) => diagnosis.instance(id),
    }
  }
  const readiness = () =>
    buildReadiness({
      sync: sync.status(),
      store: source.description,
      instances: view.size,
      contestedAddresses: view.contested().size,
      viewAgeSeconds: viewAgeSeconds(),
      firewall: firewall.status(),
      listenerProblems: listenerProblems(),
      log: logLevel.state,
    })
  const statusPage = buildStatusPage({
    config,
    guestSide,
    registry: metrics.registry,
    readiness,
    traceParts,
    networks,
    operator: () => tcp.place ?? config.operator,
  })
  const operatorParts = {
    firewall,
    metrics: metrics.registry,
    readiness,
    logLevel,
    page: statusPage.page,
    launchGate: buildLaunchGate({ view, firewall, networks, unreachable }),
    trace: (id: string) => traceOf(traceParts, id),
    reports: (id: string) => reportsOf(guestSide, id),
  }
  const most = maxOperatorConnections(readLimits())
  const { allow, password, ...listener } = config.operator
  const tcp = new OperatorListener<HostPort>({
    server: buildTcpServer(partsOfListener(), { allow, password, most, now, log }),
    listener,
    variable: 'IMDS_OPERATOR_LISTEN',
    log,
  })
  const socket = new OperatorListener({
    server: buildSocketServer(partsOfListener(), most),
    listener: { path: config.operatorSocket },
    variable: 'IMDS_OPERATOR_SOCKET',
    log,
  })
  const listenerProblems = () => [
    ...config.unserved.map(({ problem }) => problem),
    ...addresses.missing().map(formatMissing),
    ...[hold(), tcp.problem, socket.problem].filter((problem) => problem !== undefined),
  ]
  return { tcp, socket, listenerProblems, statusPage }
}

async function buildSource(
  store: StoreConfig,
  cipher: RecordCipher | undefined,
  userDataMaxBytes: number,
  announcement: Announcement,
): Promise<Source> {
  if (store.kind === 'files')
    return onlyIds((await import('../store/files/source.ts')).buildFileSource(store.directory, userDataMaxBytes))
  const { buildRedisSource } = await import('../store/redis/source.ts')
  return onlyIds(
    buildRedisSource({
      settings: store,
      region: store.region,
      hypervisor: store.hypervisor,
      cipher,
      userDataMaxBytes,
      announcement,
    }),
  )
}

/** How this daemon announces itself in the store. Each reason for a failure is logged once. */
function buildAnnouncement(
  view: View,
  lagMs: () => number,
  operatorPlace: () => HostPort | undefined,
  log: Logger,
): Announcement {
  const logged = new Set<string>()
  return {
    state: () => {
      const place = operatorPlace()
      return {
        version: VERSION,
        instances: view.size,
        lagSeconds: Math.floor(lagMs() / 1000),
        ...(place !== undefined && isReachable(place) && { operator: formatHostPort(place) }),
      }
    },
    failed: (reason) => {
      if (!logged.has(reason)) {
        log.warn(
          { reason },
          'this daemon cannot announce itself in the store, so publishers warn of an unknown hypervisor: ' +
            'allow its Redis user +set on the key of its announcement (deploy/redis.acl)',
        )
      }
      logged.add(reason)
    },
  }
}
