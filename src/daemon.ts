/**
 * The composition root of imdsd: builds the parts in order, and stops them in reverse.
 *
 * It starts in two phases, so that guests are served early. The first phase is the guest side, which is small and answers guests from the snapshot. The
 * second phase loads and starts everything else: the store, sync, the firewall, metrics and the operator server.
 */
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Config, StoreConfig } from './config.ts'
import type { Firewall } from './firewall/firewall.ts'
import { RefusalLog } from './guest/refusal-log.ts'
import { LIMITED_DSCP, limitHops } from './guest/hop-limit.ts'
import type { Directory } from './guest/identify.ts'
import { RequestMeter } from './guest/meter.ts'
import { buildGuestServer } from './guest/server.ts'
import { Shares, UNKNOWN_PEERS } from './guest/share.ts'
import { Tokens, tokenTime } from './guest/token.ts'
import type { Metrics } from './metrics.ts'
import type { OperatorListener } from './operator/listener.ts'
import type { OperatorParts } from './operator/server.ts'
import type { AddressWatch } from './runtime/addresses.ts'
import { formatHostPort, type HostPort, type UnixSocket } from './runtime/host-port.ts'
import { listen, maxConnections, maxOperatorConnections, StartFailure } from './runtime/listen.ts'
import { isOneAddress } from './metadata/address.ts'
import { DEFAULT_NETWORK } from './metadata/identifiers.ts'
import { restoreView, type Restored } from './view/restore.ts'
import { DISK } from './view/disk.ts'
import { lockState } from './view/state-lock.ts'
import { snapshotPath, type StateKeys, type StateOwner } from './view/state-files.ts'
import type { Announcement } from './store/redis/source.ts'
import { onlyIds } from './store/only-ids.ts'
import type { Source } from './store/source.ts'
import { RecordCipher } from './store/crypto/record-cipher.ts'
import type { Sync } from './view/sync.ts'
import { View } from './view/view.ts'
import { ownTokenKey } from './guest/token-key.ts'
import { VERSION } from './version.ts'

/** The file that shows how many file descriptors this process may open. */
const LIMITS = '/proc/self/limits'

/** How long a change waits for the disk. A busy disk needs a second. */
const DISK_TIMEOUT_MS = 5_000
/** How long a start waits for a daemon with the same state directory to end: a stop takes 1.5 s, and a fold. */
const LOCK_WAIT_MS = 5_000
/** The pause after the disk has failed. */
const DISK_RETRY_MS = 30_000

const ALL_ADDRESSES = 'IMDS_LISTEN: with IMDS_FIREWALL=required each listener needs a specific address, not 0.0.0.0 or ::, since the firewall rules name addresses'

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
 * Starts a daemon. It answers guests at once from its snapshot; a guest that is not in the snapshot gets 503 until the store has answered.
 * Rejects when a guest listener cannot be opened or another daemon has the state directory, and leaves nothing running.
 */
export async function startDaemon(config: Config, log: Logger): Promise<Daemon> {
  const now = () => performance.now()
  const lock = await lockState(config.stateDirectory, LOCK_WAIT_MS, log)
  try {
    const guestSide = await startGuestSide(config, log, now)
    await turn()
    const daemon = await startBackground(config, log, now, guestSide).catch(async (error: unknown) => {
      await guestSide.stop()
      throw error
    })
    return { ...daemon, stop: () => daemon.stop().finally(() => { lock.close() }) }
  } catch (error) {
    lock.close()
    throw error
  }
}

/** A listener of guests, with its actual address and port. */
interface GuestPlace extends HostPort { readonly network: string }

/** The guest side: the view, filled from the state directory, and the servers of guests. */
interface GuestSide {
  readonly view: View
  readonly meter: RequestMeter
  readonly keys: StateKeys
  readonly restored: Omit<Restored, 'instances'>
  readonly guests: readonly GuestPlace[]
  /** Sets the function that looks up unknown peers. */
  lookUpBy(ask: Directory['ask']): void
  stop(): Promise<void>
}

async function startGuestSide(config: Config, log: Logger, now: () => number): Promise<GuestSide> {
  const secrets = config.tokenKeys ?? [ownTokenKey(config.stateDirectory, log)]
  const tokens = new Tokens(secrets, tokenTime(() => Date.now(), now))
  const meter = new RequestMeter()
  const view = new View(config.provider, now)
  const owner = stateOwner(config.store)
  const cipher = cipherOf(config.store)
  const keys = { cipher, macKeys: cipher?.macKeys(owner.hypervisor ?? '') ?? secrets }
  const { instances, ...restored } = await restoreView(snapshotPath(config.stateDirectory), owner, keys, config.snapshotMaxAgeMs, Date.now(), log)
  for (const assembled of instances) view.replace(assembled)
  let ask: Directory['ask'] = () => undefined
  const directory: Directory = { find: (network, address) => view.find(network, address), ask: (network, address) => ask(network, address) }
  const most = maxConnections(readLimits(), config.listen.length)
  const shares = new Shares(config.share, UNKNOWN_PEERS)
  const rules = { tokens, forwarded: config.forwarded, limitHops }
  const refusalLog = new RefusalLog(log, now)
  const servers = config.listen.map(({ network }) => buildGuestServer({ network, maxConnections: most, directory, shares, rules, meter, refusalLog, log }))
  const stop = async () => { await Promise.all(servers.map((server) => server.close())) }
  try {
    const guests: GuestPlace[] = []
    for (const [i, server] of servers.entries()) {
      const listener = config.listen[i]!
      guests.push({ network: listener.network, ...await listen(server, listener, 'IMDS_LISTEN') })
    }
    if (config.firewall.required && !guests.every(({ host }) => isOneAddress(host))) throw new StartFailure(ALL_ADDRESSES)
    warnOfOverruled(config, guests, log)
    for (const { network, problem } of config.unserved) log.warn({ network }, problem)
    return { view, meter, keys, restored, guests, lookUpBy: (by) => { ask = by }, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Warns if IMDS_LISTEN names other addresses or networks than the sockets that systemd passed. An address without a network may be that of any. */
function warnOfOverruled({ overruledListen = [] }: Config, guests: readonly GuestPlace[], log: Logger): void {
  const format = (place: GuestPlace) => `${place.network}=${formatHostPort(place)}`
  const isServed = ({ network, host, port }: GuestPlace) =>
    guests.some((one) => one.host === host && one.port === port && (network === one.network || network === DEFAULT_NETWORK))
  if (overruledListen.every(isServed)) return
  log.warn({ ignored: overruledListen.map(format), sockets: guests.map(format) }, 'IMDS_LISTEN is ignored: an enabled systemd socket unit says where to listen. Change its ListenStream=, or disable it')
}

/** Loads and starts everything else, in steps. Guests are answered between two steps. */
async function startBackground(config: Config, log: Logger, now: () => number, guestSide: GuestSide): Promise<Daemon> {
  const { view, keys, guests } = guestSide
  const { hypervisor } = config.store
  const { buildMetrics } = await import('./metrics.ts')
  await turn()
  const { ClockWatch, CHECK_INTERVAL_MS } = await import('./runtime/clock.ts')
  const { AddressWatch } = await import('./runtime/addresses.ts')
  const metrics = buildMetrics()
  const source = await buildSource(config.store, keys.cipher, config.userDataMaxBytes, buildAnnouncement(view, log))
  await turn()

  const fromSnapshot = view.size
  const clock = new ClockWatch({ wall: () => Date.now(), steady: now, setBacks: metrics.clockSetBacks, log })
  clock.aheadMs(-(guestSide.restored.ageMs ?? 0))
  const { sync, persistence, firewall, viewAgeSeconds } = await buildFollowers(config, log, now, guestSide, source, metrics)
  const addresses = new AddressWatch(guests.map(({ host }) => host), log)
  const operators = await buildOperatorSide({ config, log, now, view, guests, source, metrics, sync, firewall, addresses, viewAgeSeconds })
  metrics.readFrom({
    meter: guestSide.meter, instances: () => view.size, contested: () => view.contested().size, sync: () => sync.status(), viewAgeSeconds,
    firewall: () => firewall.status(), missingAddresses: () => addresses.missing().length, unservedNetworks: () => config.unserved.length,
    closedOperatorListeners: () => operators.problems().length,
  })

  const clockChecks = setInterval(() => { clock.check() }, CHECK_INTERVAL_MS)
  const stop = async () => {
    clearInterval(clockChecks)
    addresses.stop()
    firewall.stop()
    await Promise.all([guestSide.stop(), operators.tcp.stop(), operators.socket.stop()])
    await sync.stop()
    await persistence.stop()
  }
  try {
    await operators.tcp.start()
    await operators.socket.start()
    const operator = operators.tcp.place
    const { host: address, port } = operator ?? config.operator
    const listeners = guests.map(({ network, host, port }) => ({ network, address: host, port }))
    firewall.listens({ listeners, operator: { address, port }, limitedDscp: LIMITED_DSCP })
    if (fromSnapshot > 0 && guestSide.restored.isWhole) firewall.isWhole()
    await addresses.start()
    sync.start()
    const recordKeys = keys.cipher?.names ?? []
    log.info({ guests: guests.map(formatHostPort), operator: operator && formatHostPort(operator), operatorSocket: operators.socket.place?.path, store: source.description, hypervisor, recordKeys, fromSnapshot }, 'listening')
    return { guests, operator, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Builds the parts that follow the store and the view: sync, the files of the view and the firewall. Enables lookups of unknown peers. */
async function buildFollowers(config: Config, log: Logger, now: () => number, guestSide: GuestSide, source: Source, metrics: Metrics) {
  const { view, keys, restored } = guestSide
  const [{ Firewall }, { Sync }, { PeerLookup }, { Persistence }] = await Promise.all([
    import('./firewall/firewall.ts'), import('./view/sync.ts'), import('./view/peer-lookup.ts'), import('./view/persistence.ts'),
  ])
  const persistence = new Persistence({
    disk: DISK, path: snapshotPath(config.stateDirectory), owner: stateOwner(config.store), keys, restored, maxAgeMs: config.snapshotMaxAgeMs,
    timeoutMs: DISK_TIMEOUT_MS, retryMs: DISK_RETRY_MS, asOfMs: Date.now() - (restored.ageMs ?? 0), instances: () => view.instances(),
    snapshotWrites: metrics.snapshotWrites, journalWrites: metrics.journalWrites, log,
  })
  const instances = () => view.instances().map(({ instance }) => instance)
  const firewall = new Firewall({ ...config.firewall, instances, now, epoch: randomBytes(4).toString('hex'), log })
  const sync = new Sync({
    source, view, changeLog: persistence, hypervisor: config.store.hypervisor, userDataMaxBytes: config.userDataMaxBytes, resyncMs: config.resyncMs,
    metrics: metrics.sync, log,
    changed: () => { firewall.changed() },
    confirmed: () => {
      firewall.isWhole()
      persistence.confirmed()
    },
  })
  const startedAtMs = now() - Math.max(0, restored.ageMs ?? now())
  const peerLookup = new PeerLookup({
    find: (network, address) => view.find(network, address), lookUp: (network, address) => sync.lookUp(network, address),
    canAsk: () => sync.status().connected, lookups: metrics.lookups, now,
  })
  guestSide.lookUpBy((network, address) => peerLookup.ask(network, address))
  return { sync, persistence, firewall, viewAgeSeconds: () => (now() - (sync.status().resyncedAtMs ?? startedAtMs)) / 1000 }
}

interface OperatorSideParts {
  readonly config: Config
  readonly log: Logger
  readonly now: () => number
  readonly view: View
  readonly guests: readonly GuestPlace[]
  readonly source: Source
  readonly metrics: Metrics
  readonly sync: Sync
  readonly firewall: Firewall
  readonly addresses: AddressWatch
  readonly viewAgeSeconds: () => number
}

/** The listeners of the operator API, and why those that are not open are not. */
interface OperatorSide { readonly tcp: OperatorListener<HostPort>, readonly socket: OperatorListener<UnixSocket>, readonly problems: () => readonly string[] }

/** Builds the listeners of the operator API. */
async function buildOperatorSide(parts: OperatorSideParts): Promise<OperatorSide> {
  const { config, log, now, view, guests, source, metrics, sync, firewall, addresses, viewAgeSeconds } = parts
  const [
    { buildSocketServer, buildTcpServer }, { explain }, { buildDiagnosis }, { buildLaunchGate, unreachableBy },
    { buildReadiness }, { formatMissing }, { OperatorListener },
  ] = await Promise.all([
    import('./operator/server.ts'), import('./operator/explain.ts'), import('./operator/diagnosis.ts'), import('./operator/launch-gate.ts'),
    import('./operator/readiness.ts'), import('./runtime/addresses.ts'), import('./operator/listener.ts'),
  ])
  const networks = [...new Set(config.listen.map(({ network }) => network))]
  const unreachable = unreachableBy(guests, () => addresses.missing(), formatMissing)
  const diagnosis = buildDiagnosis({ view, source, sync, networks, hypervisor: config.store.hypervisor, userDataMaxBytes: config.userDataMaxBytes, now })
  const operatorParts: OperatorParts = {
    firewall, metrics: metrics.registry,
    readiness: () => buildReadiness({
      sync: sync.status(), store: source.description, instances: view.size, contestedAddresses: view.contested().size,
      viewAgeSeconds: viewAgeSeconds(), firewall: firewall.status(),
      listenerProblems: [...config.unserved.map(({ problem }) => problem), ...addresses.missing().map(formatMissing), ...problems()],
    }),
    launchGate: buildLaunchGate({ view, firewall, networks, unreachable }),
    explain: (network, address) => explain({ view, firewall, networks, unserved: config.unserved, diagnosis, unreachable }, network, address),
    diagnose: (id) => diagnosis.instance(id),
  }
  const most = maxOperatorConnections(readLimits())
  const { allow, ...listener } = config.operator
  const tcp = new OperatorListener<HostPort>({ server: buildTcpServer(operatorParts, { allow, most, now, log }), listener, variable: 'IMDS_OPERATOR_LISTEN', log })
  const socket = new OperatorListener({ server: buildSocketServer(operatorParts, most), listener: { path: config.operatorSocket }, variable: 'IMDS_OPERATOR_SOCKET', log })
  const problems = () => [tcp.problem, socket.problem].filter((problem) => problem !== undefined)
  return { tcp, socket, problems }
}

function readLimits(): string {
  return existsSync(LIMITS) ? readFileSync(LIMITS, 'utf8') : ''
}

function stateOwner(store: StoreConfig): StateOwner {
  const { hypervisor } = store
  return store.kind === 'redis' ? { store: 'redis', region: store.region, hypervisor } : { store: `file:${store.directory}`, region: undefined, hypervisor }
}

function cipherOf(store: StoreConfig): RecordCipher | undefined {
  return store.kind === 'files' || store.recordKeys === undefined ? undefined : new RecordCipher(store.recordKeys, store.region)
}

async function buildSource(store: StoreConfig, cipher: RecordCipher | undefined, userDataMaxBytes: number, announcement: Announcement): Promise<Source> {
  if (store.kind === 'files') return onlyIds((await import('./store/files/source.ts')).buildFileSource(store.directory, userDataMaxBytes))
  const { buildRedisSource } = await import('./store/redis/source.ts')
  return onlyIds(buildRedisSource({ settings: store, region: store.region, hypervisor: store.hypervisor, cipher, userDataMaxBytes, announcement }))
}

/** How this daemon announces itself in the store. Each reason for a failure is logged once. */
function buildAnnouncement(view: View, log: Logger): Announcement {
  const logged = new Set<string>()
  return {
    state: () => ({ version: VERSION, instances: view.size }),
    failed: (reason) => {
      if (!logged.has(reason)) {
        log.warn({ reason }, 'this daemon cannot announce itself in the store, so publishers warn of an unknown hypervisor: allow its Redis user +set on the key of its announcement (deploy/redis.acl)')
      }
      logged.add(reason)
    },
  }
}
