/**
 * The only place where rooms meet: builds them in order, stops them in reverse.
 */
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import type { Logger } from 'pino'
import { ClockWatch, LOOK_EVERY_MS } from './clock.ts'
import type { Config, StoreConfig } from './config.ts'
import { Edge } from './edge/edge.ts'
import { explain } from './explain.ts'
import { Complaints } from './guest/complaints.ts'
import { RequestMeter } from './guest/meter.ts'
import { buildGuestServer } from './guest/server.ts'
import { Shares, STRANGERS } from './guest/share.ts'
import { Tokens } from './guest/token.ts'
import { listen, maxConnections, written, type Place } from './listen.ts'
import { buildMetrics } from './metrics.ts'
import { buildOperatorServer } from './operator/server.ts'
import { readSnapshot, snapshotPath, SnapshotWriter, type SnapshotOwner } from './store/snapshot.ts'
import type { Source } from './store/source.ts'
import { Strangers } from './store/strangers.ts'
import { Trust } from './store/trust.ts'
import { View } from './store/view.ts'
import { Watch } from './store/watch.ts'
import { ownTokenKey } from './token-key.ts'

/** Where Linux says how many file descriptors we may have open. */
const LIMITS = '/proc/self/limits'

const EVERYWHERE = 'IMDS_LISTEN: with IMDS_FIREWALL=required a listener has an address of its own, since the firewall keeps addresses and not a host'

/** A running daemon. */
export interface Daemon {
  /** Where guests are answered, in the order of the configuration, with the ports that were taken. */
  readonly guests: readonly Place[]
  readonly operator: Place
  /** Stops accepting, lets answers under way out, and lets go of the store. */
  stop(): Promise<void>
}

/**
 * Starts a daemon: it listens at once and answers 503 until it has data. Rejects when a listener cannot be had, with nothing left
 * running.
 */
export async function startDaemon(config: Config, log: Logger): Promise<Daemon> {
  const now = () => performance.now()
  const tokens = new Tokens(config.tokenKeys ?? [ownTokenKey(config.stateDirectory, log)], () => Date.now() / 1000)
  const metrics = buildMetrics()
  const meter = new RequestMeter()
  const view = new View(config.provider, now)
  const trust = trustOf(config.store)
  const source = await buildSource(config.store, trust)
  const { hypervisor } = config.store
  const path = snapshotPath(config.stateDirectory)
  const owner = snapshotOwner(config.store)
  const snapshot = readSnapshot(path, owner, trust, config.snapshotMaxAgeMs, Date.now(), log)
  for (const assembled of snapshot?.instances ?? []) view.replace(assembled)
  const clock = new ClockWatch({ wall: () => Date.now(), steady: now, setBacks: metrics.clockSetBacks, log })
  clock.aheadMs(-(snapshot?.ageMs ?? 0))
  const asOfMs = Date.now() - (snapshot?.ageMs ?? 0)
  const instances = () => view.held().filter(({ visiting }) => !visiting)
  const writer = new SnapshotWriter({ path, owner, trust, asOfMs, instances, writes: metrics.snapshotWrites, log })
  const edge = new Edge({ ...config.edge, instances: () => instances().map(({ instance }) => instance), now, epoch: randomBytes(4).toString('hex') })
  const watch = new Watch({
    source, view, hypervisor, userDataMaxBytes: config.userDataMaxBytes, resyncMs: config.resyncMs, metrics: metrics.watch, log,
    changed: () => {
      writer.changed()
      edge.changed()
    },
    confirmed: () => {
      writer.confirmed()
      edge.isWhole()
    },
  })
  const bornAtMs = now() - Math.max(0, snapshot?.ageMs ?? now())
  const viewAgeSeconds = () => (now() - (watch.status().resyncedAtMs ?? bornAtMs)) / 1000
  const status = () => watch.status()
  metrics.readFrom({ meter, instances: () => view.size, contested: () => view.contested().size, watch: status, viewAgeSeconds, edge: () => edge.status() })
  const complaints = new Complaints(log, now)
  const find = (network: string, address: string) => view.find(network, address)
  const strangers = new Strangers({
    find, welcome: (network, address) => watch.welcome(network, address), canAsk: () => watch.status().connected, questions: metrics.questions, now,
  })
  const directory = { find, ask: (network: string, address: string) => strangers.ask(network, address) }
  const most = maxConnections(existsSync(LIMITS) ? readFileSync(LIMITS, 'utf8') : '', config.listen.length)
  const shares = new Shares(config.share, STRANGERS)
  const rules = { tokens, forwarded: config.forwarded }
  const guestServers = config.listen.map(({ network }) => buildGuestServer({ network, maxConnections: most, directory, shares, rules, meter, complaints, log }))
  const readiness = () => ({ ...readinessOf(watch, view, source, viewAgeSeconds()), edge: edge.status() })
  const revisionOf = (id: string) => {
    const held = view.get(id)
    const isAnswered = held?.instance.interfaces.some(({ network }) => config.listen.some((listener) => listener.network === network)) === true
    const isContested = [...view.contested().values()].some((ids) => ids.includes(id))
    return held === undefined || held.visiting || !isAnswered || isContested ? null : held.instance.revision
  }
  const holds = (id: string) => {
    const held = view.get(id)
    return held === undefined ? null : edge.holds(held.instance)
  }
  const networks = [...new Set(config.listen.map(({ network }) => network))]
  const explained = (network: string, address: string) => explain({ view, edge, networks }, network, address)
  const operatorServer = buildOperatorServer({
    allow: config.operator.allow, metrics: metrics.registry, readiness, revisionOf, holds, edge, explain: explained,
  })

  const looks = setInterval(() => { clock.look() }, LOOK_EVERY_MS)
  const stop = async () => {
    clearInterval(looks)
    edge.stop()
    await Promise.all([...guestServers, operatorServer].map((server) => server.close()))
    await watch.stop()
    await writer.stop()
  }
  try {
    const operator = await listen(operatorServer, config.operator, 'IMDS_OPERATOR_LISTEN')
    const guests: Place[] = []
    for (const [i, server] of guestServers.entries()) guests.push(await listen(server, config.listen[i]!, 'IMDS_LISTEN'))
    if (config.edge.required && guests.some(({ host }) => host === '::' || host === '0.0.0.0')) throw new Error(EVERYWHERE)
    const listeners = guests.map(({ host, port }, i) => ({ network: config.listen[i]!.network, address: host, port }))
    edge.listens({ listeners, operator: { address: operator.host, port: operator.port } })
    const fromSnapshot = snapshot?.instances.length ?? 0
    if (fromSnapshot > 0) edge.isWhole()
    watch.start()
    const recordKeys = trust?.names ?? []
    log.info({ guests: guests.map(written), operator: written(operator), store: source.description, hypervisor, recordKeys, fromSnapshot }, 'listening')
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

function trustOf(store: StoreConfig): Trust | null {
  return store.kind === 'files' || store.recordKeys === null ? null : new Trust(store.recordKeys, store.region)
}

async function buildSource(store: StoreConfig, trust: Trust | null): Promise<Source> {
  if (store.kind === 'files') return (await import('./store/files.ts')).buildFileSource(store.directory)
  const { buildRedisSource } = await import('./store/redis.ts')
  return buildRedisSource(store, store.region, store.hypervisor, trust)
}

function readinessOf(watch: Watch, view: View, source: Source, viewAgeSeconds: number) {
  const { ready, connected, unconfirmed, faulty } = watch.status()
  return {
    ready,
    store: source.description,
    connected,
    instances: view.size,
    viewAgeSeconds: Math.round(viewAgeSeconds * 1000) / 1000,
    unconfirmed,
    faulty,
    contestedAddresses: view.contested().size,
  }
}
