/**
 * The only place where rooms meet: builds them in order, stops them in reverse.
 *
 * Guests come first. What answers them from the snapshot is little, and listens before the rest is even loaded: the clients of the store
 * and of Prometheus, the operators' side, the firewall's. So the imports below are few, and `startKeeping` makes its own.
 */
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Config, StoreConfig } from './config.ts'
import { RefusalLog } from './guest/refusal-log.ts'
import { LIMITED_DSCP, limitHops } from './guest/hop-limit.ts'
import type { Directory } from './guest/identify.ts'
import { RequestMeter } from './guest/meter.ts'
import { buildGuestServer } from './guest/server.ts'
import { Shares, UNKNOWN_PEERS } from './guest/share.ts'
import { Tokens, tokenTime } from './guest/token.ts'
import { formatHostPort, type HostPort } from './runtime/host-port.ts'
import { listen, maxConnections, StartFailure } from './runtime/listen.ts'
import { isOneAddress } from './metadata/address.ts'
import type { Instance } from './metadata/instance.ts'
import { readSnapshot, snapshotPath, SnapshotWriter, type SnapshotKeys, type SnapshotOwner } from './view/snapshot.ts'
import type { Announcement } from './store/redis/source.ts'
import type { Source } from './store/source.ts'
import { RecordCipher } from './store/crypto/record-cipher.ts'
import { View } from './view/view.ts'
import type { SyncStatus } from './view/sync.ts'
import { ownTokenKey } from './guest/token-key.ts'
import { VERSION } from './version.ts'

/** Where Linux says how many file descriptors we may have open. */
const LIMITS = '/proc/self/limits'

const LOOPBACK = '127.0.0.1'
const EVERYWHERE = 'IMDS_LISTEN: with IMDS_FIREWALL=required a listener has an address of its own, since the firewall keeps addresses and not a host'

/** A running daemon. */
export interface Daemon {
  /** Where guests are answered, in the order of the configuration, with the ports that were taken. */
  readonly guests: readonly HostPort[]
  readonly operator: HostPort
  /** Stops accepting, lets answers under way out, and lets go of the store. */
  stop(): Promise<void>
}

/**
 * Starts a daemon: it answers guests at once from its snapshot, and 503 whoever is not in it until it has data. Rejects when a listener
 * cannot be had, with nothing left running.
 */
export async function startDaemon(config: Config, log: Logger): Promise<Daemon> {
  const now = () => performance.now()
  const answering = await startAnswering(config, log, now)
  await turn()
  try {
    return await startKeeping(config, log, now, answering)
  } catch (error) {
    await answering.stop()
    throw error
  }
}

/** What answers guests, from the view as the snapshot left it. */
interface Answering {
  readonly view: View
  readonly meter: RequestMeter
  readonly keys: SnapshotKeys
  /** Undefined where there was none to be served. */
  readonly snapshotAgeMs: number | undefined
  /** There was one, in the form that we write. */
  readonly isSnapshotCurrent: boolean
  readonly guests: readonly HostPort[]
  /** Says who may know more about an unknown address. */
  askBy(ask: Directory['ask']): void
  stop(): Promise<void>
}

async function startAnswering(config: Config, log: Logger, now: () => number): Promise<Answering> {
  const secrets = config.tokenKeys ?? [ownTokenKey(config.stateDirectory, log)]
  const tokens = new Tokens(secrets, tokenTime(() => Date.now(), now))
  const meter = new RequestMeter()
  const view = new View(config.provider, now)
  const keys = { cipher: cipherOf(config.store), key: secrets[0]! }
  const snapshot = await readSnapshot(snapshotPath(config.stateDirectory), snapshotOwner(config.store), keys, config.snapshotMaxAgeMs, Date.now(), log)
  for (const assembled of snapshot?.instances ?? []) view.replace(assembled)
  let ask: Directory['ask'] = () => null
  const directory: Directory = { find: (network, address) => view.find(network, address), ask: (network, address) => ask(network, address) }
  const most = maxConnections(existsSync(LIMITS) ? readFileSync(LIMITS, 'utf8') : '', config.listen.length)
  const shares = new Shares(config.share, UNKNOWN_PEERS)
  const rules = { tokens, forwarded: config.forwarded, limitHops }
  const refusalLog = new RefusalLog(log, now)
  const servers = config.listen.map(({ network }) => buildGuestServer({ network, maxConnections: most, directory, shares, rules, meter, refusalLog, log }))
  const stop = async () => { await Promise.all(servers.map((server) => server.close())) }
  try {
    const guests: HostPort[] = []
    for (const [i, server] of servers.entries()) guests.push(await listen(server, config.listen[i]!, 'IMDS_LISTEN'))
    if (config.firewall.required && !guests.every(({ host }) => isOneAddress(host))) throw new StartFailure(EVERYWHERE)
    warnOfOverruled(config, guests, log)
    return { view, meter, keys, snapshotAgeMs: snapshot?.ageMs, isSnapshotCurrent: snapshot?.isCurrent === true, guests, askBy: (by) => { ask = by }, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** IMDS_LISTEN says something else than the sockets that systemd gave us. */
function warnOfOverruled({ overruledListen, listen }: Config, guests: readonly HostPort[], log: Logger): void {
  const named = (network: string, place: HostPort) => `${network}=${formatHostPort(place)}`
  const ignored = overruledListen?.map(({ network, host, port }) => named(network, { host, port })) ?? []
  const sockets = new Set(guests.map((place, i) => named(listen[i]!.network, place)))
  if (ignored.every((one) => sockets.has(one))) return
  log.warn({ ignored, sockets: [...sockets] }, 'IMDS_LISTEN is ignored: a socket unit of systemd is enabled and says where to listen. Change its ListenStream=, or disable it')
}

/** Keeps the view in step with the store, the snapshot and the firewall with the view, and lets operators look in. */
async function startKeeping(config: Config, log: Logger, now: () => number, answering: Answering): Promise<Daemon> {
  const { view, meter, keys, snapshotAgeMs, guests } = answering
  const { buildMetrics } = await import('./metrics.ts')
  await turn() // guests are answered between one step and the next
  const { buildOperatorServer } = await import('./operator/server.ts')
  const [{ Firewall }, { explain }, { ClockWatch, CHECK_INTERVAL_MS }] = await Promise.all([import('./firewall/firewall.ts'), import('./operator/explain.ts'), import('./runtime/clock.ts')])
  const { AddressWatch, formatMissing } = await import('./runtime/addresses.ts')
  const [{ Sync }, { PeerLookup }] = await Promise.all([import('./view/sync.ts'), import('./view/peer-lookup.ts')])
  const source = await buildSource(config.store, keys.cipher, config.userDataMaxBytes, {
    state: () => ({ version: VERSION, instances: view.size }),
    failed: onceEach((reason) => { log.warn({ reason }, 'this daemon cannot announce itself in the store: publishers are warned of an unknown hypervisor. Its Redis user needs +hset for the key of hypervisors: see deploy/redis.acl') }),
  })
  await turn()

  const fromSnapshot = view.size
  const metrics = buildMetrics()
  const { hypervisor } = config.store
  const clock = new ClockWatch({ wall: () => Date.now(), steady: now, setBacks: metrics.clockSetBacks, log })
  clock.aheadMs(-(snapshotAgeMs ?? 0))
  const asOfMs = Date.now() - (snapshotAgeMs ?? 0)
  const instances = () => view.instances()
  const writer = new SnapshotWriter({
    path: snapshotPath(config.stateDirectory), owner: snapshotOwner(config.store), keys, asOfMs, wasRead: answering.isSnapshotCurrent, instances,
    writes: metrics.snapshotWrites, log,
  })
  // Before the view is confirmed, a file that could not be read may hold more than the view: the last good state, under another key.
  let mayWrite = answering.isSnapshotCurrent
  const firewall = new Firewall({ ...config.firewall, instances: () => instances().map(({ instance }) => instance), now, epoch: randomBytes(4).toString('hex'), log })
  const sync = new Sync({
    source, view, hypervisor, userDataMaxBytes: config.userDataMaxBytes, resyncMs: config.resyncMs, metrics: metrics.sync, log,
    changed: () => {
      if (mayWrite) writer.changed()
      firewall.changed()
    },
    confirmed: () => {
      mayWrite = true
      writer.confirmed()
      firewall.isWhole() // a store that cannot be used confirms nothing: without a snapshot the firewall gets no view and keeps its rules
    },
  })
  const bornAtMs = now() - Math.max(0, snapshotAgeMs ?? now())
  const viewAgeSeconds = () => (now() - (sync.status().resyncedAtMs ?? bornAtMs)) / 1000
  const addresses = new AddressWatch(guests.map(({ host }) => host), log)
  metrics.readFrom({
    meter, instances: () => view.size, contested: () => view.contested().size, sync: () => sync.status(), viewAgeSeconds, firewall: () => firewall.status(),
    missingAddresses: () => addresses.missing().length,
  })
  const peerLookup = new PeerLookup({
    find: (network, address) => view.find(network, address), lookUp: (network, address) => sync.lookUp(network, address),
    canAsk: () => sync.status().connected, lookups: metrics.lookups, now,
  })
  answering.askBy((network, address) => peerLookup.ask(network, address))
  const readiness = () => {
    const state = readinessOf(sync.status(), view, source, viewAgeSeconds())
    const missing = addresses.missing()
    const problems = [...'problem' in state ? [state.problem] : [], ...missing.map(formatMissing)]
    return { ...state, ready: state.ready && missing.length === 0, ...problems.length > 0 && { problem: problems.join('; ') }, firewall: firewall.status() }
  }
  const revisionOf = (id: string) => {
    const served = view.get(id)
    const isAnswered = served?.instance.interfaces.some(({ network }) => config.listen.some((listener) => listener.network === network)) === true
    const isContested = [...view.contested().values()].some((ids) => ids.includes(id))
    return served === undefined || !isAnswered || isContested ? null : served.instance.revision
  }
  /** Why a guest cannot reach the listeners of its networks, or null. */
  const unreachable = ({ interfaces }: Instance) => {
    const missing = guests.find(({ host }, i) => addresses.missing().includes(host) && interfaces.some(({ network }) => network === config.listen[i]!.network))
    return missing === undefined ? null : formatMissing(missing.host)
  }
  const holds = (id: string) => {
    const served = view.get(id)
    if (served === undefined) return null
    const fault = firewall.linkFault(served.instance)
    if (fault !== null) return { reason: fault, isFinal: true }
    const reason = unreachable(served.instance) ?? firewall.holds(served.instance)
    return reason === null ? null : { reason, isFinal: false }
  }
  const networks = [...new Set(config.listen.map(({ network }) => network))]
  const { buildDiagnosis } = await import('./operator/diagnosis.ts')
  const diagnosis = buildDiagnosis({ view, source, sync, networks, hypervisor, userDataMaxBytes: config.userDataMaxBytes, now })
  const explained = (network: string, address: string) => explain({ view, firewall, networks, diagnosis, unreachable }, network, address)
  const operatorServerFor = (allow: readonly string[]) => buildOperatorServer({
    allow, metrics: metrics.registry, readiness, revisionOf, holds, firewall, explain: explained,
    diagnose: (id) => diagnosis.instance(id),
  })

  const operatorServers = [operatorServerFor(config.operator.allow)]
  const looks = setInterval(() => { clock.check() }, CHECK_INTERVAL_MS)
  const stop = async () => {
    clearInterval(looks)
    addresses.stop()
    firewall.stop()
    await Promise.all([answering.stop(), ...operatorServers.map((server) => server.close())])
    await sync.stop()
    await writer.stop()
  }
  try {
    const operator = await listen(operatorServers[0]!, config.operator, 'IMDS_OPERATOR_LISTEN')
    if (![LOOPBACK, '0.0.0.0', '::'].includes(operator.host)) {
      // imdsctl and imds-firewall on this host ask here, wherever else operators do.
      operatorServers.push(operatorServerFor([]))
      await listen(operatorServers[1]!, { host: LOOPBACK, port: operator.port }, 'IMDS_OPERATOR_LISTEN')
    }
    const listeners = guests.map(({ host, port }, i) => ({ network: config.listen[i]!.network, address: host, port }))
    firewall.listens({ listeners, operator: { address: operator.host, port: operator.port }, limitedDscp: LIMITED_DSCP })
    if (fromSnapshot > 0) firewall.isWhole()
    await addresses.start()
    sync.start()
    const recordKeys = keys.cipher?.names ?? []
    log.info({ guests: guests.map(formatHostPort), operator: formatHostPort(operator), store: source.description, hypervisor, recordKeys, fromSnapshot }, 'listening')
    return { guests, operator, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

function snapshotOwner(store: StoreConfig): SnapshotOwner {
  const { hypervisor } = store
  return store.kind === 'redis' ? { store: 'redis', region: store.region, hypervisor } : { store: `file:${store.directory}`, region: null, hypervisor }
}

function cipherOf(store: StoreConfig): RecordCipher | null {
  return store.kind === 'files' || store.recordKeys === null ? null : new RecordCipher(store.recordKeys, store.region)
}

async function buildSource(store: StoreConfig, cipher: RecordCipher | null, userDataMaxBytes: number, announcement: Announcement): Promise<Source> {
  if (store.kind === 'files') return (await import('./store/files/source.ts')).buildFileSource(store.directory, userDataMaxBytes)
  const { buildRedisSource } = await import('./store/redis/source.ts')
  return buildRedisSource({ settings: store, region: store.region, hypervisor: store.hypervisor, cipher, userDataMaxBytes, announcement })
}

/** Calls back with each text the first time that it is given. */
function onceEach(say: (text: string) => void): (text: string) => void {
  const said = new Set<string>()
  return (text) => {
    if (said.has(text)) return
    said.add(text)
    say(text)
  }
}

function readinessOf({ ready, problem, connected, unconfirmed, faulty }: SyncStatus, view: View, source: Source, viewAgeSeconds: number) {
  return {
    ready,
    ...problem !== null && { problem },
    store: source.description,
    connected,
    instances: view.size,
    viewAgeSeconds: Math.round(viewAgeSeconds * 1000) / 1000,
    unconfirmed,
    faulty,
    contestedAddresses: view.contested().size,
  }
}
