/**
 * The guest side of the daemon: the view, filled from the state directory, and the servers of guests. It is small, so
 * that guests are answered soon after the start; daemon.ts loads and starts everything else afterwards.
 *
 * If only the firewall separates several networks, every peer is an unknown peer until `firewallReady` is called.
 */
import type { Logger } from 'pino'
import type { Config } from './config.ts'
import { BootTraces } from './guest/boot-traces.ts'
import { CHECK_INTERVAL_MS } from './guest/connections.ts'
import { HeldRequests } from './guest/held-requests.ts'
import { GuestReports } from './guest/reports.ts'
import { limitHops } from './guest/hop-limit.ts'
import { peersOf, type PeerOwners, type Peers } from './guest/identify.ts'
import { RequestMeter } from './guest/meter.ts'
import { RefusalLog } from './guest/refusal-log.ts'
import { buildGuestServer } from './guest/server.ts'
import { Shares, UNKNOWN_PEERS } from './guest/share.ts'
import { ownTokenKey } from './guest/token-key.ts'
import { Tokens, tokenTime } from './guest/token.ts'
import { stateKeys, stateOwner } from './state-owner.ts'
import { describeFirewallWait, describeUnopened, warnOfOverruled, type GuestAddress } from './listeners.ts'
import { linkOf } from './firewall/link.ts'
import { buildIdentity } from '../identity/identity.ts'
import { describeExpiry } from '../identity/key.ts'
import { isOneAddress } from '../metadata/address.ts'
import { listen, maxConnections, readLimits, StartFailure } from '../runtime/listen.ts'
import { LinkIndex } from './view/link-index.ts'
import { restoreView, type Restored } from './journal/restore.ts'
import { snapshotPath, type StateKeys, type StateOwner } from './journal/state-files.ts'
import { View } from './view/view.ts'

const ALL_ADDRESSES =
  'IMDS_LISTEN: with IMDS_FIREWALL=required each listener needs a specific address, not 0.0.0.0 or ::, ' +
  'since the firewall rules name addresses'

export interface GuestSide {
  readonly view: View
  readonly meter: RequestMeter
  readonly traces: BootTraces
  readonly held: HeldRequests
  readonly reports: GuestReports
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly restored: Omit<Restored, 'instances'>
  readonly guests: readonly GuestAddress[]
  /** How the listener at an address identifies its guests. */
  readonly peersAt: (host: string) => Peers
  /** Loads what signs for guests, so that the first signature does not wait for it. */
  preloadIdentity(): Promise<void>
  /** Sets the function that looks up unknown peers. */
  setLookUp(lookUp: PeerOwners['lookUp']): void
  /** Why no guest is answered now, or undefined. */
  readonly firewallWait: () => string | undefined
  /** The firewall has applied its rules: guests are answered from now on. */
  firewallReady(): void
  stop(): Promise<void>
}

/**
 * Restores the view and opens the listeners. Rejects if one cannot be opened, and leaves nothing running. `now`:
 * monotonic, in ms.
 */
export async function startGuestSide(config: Config, log: Logger, now: () => number): Promise<GuestSide> {
  const secrets = config.tokenKeys ?? [ownTokenKey(config.stateDirectory, log)]
  const tokens = new Tokens(
    secrets,
    tokenTime(() => Date.now(), now),
  )
  const meter = new RequestMeter()
  const traces = new BootTraces()
  const identity = buildIdentity(config.identity, () => Date.now())
  const { signer } = identity
  const expiry = config.identity && describeExpiry(config.identity.certificate, Date.now())
  if (expiry !== undefined)
    log.warn(`the certificate in IMDS_IDENTITY_CERT_FILE ${expiry}: verifiers may reject documents`)
  const view = new View({ ...config.provider, ...(signer && { signer }) }, now)
  const owner = stateOwner(config.store)
  const keys = stateKeys(config.store, secrets)
  const { instances, ...restored } = await restoreView({
    path: snapshotPath(config.stateDirectory),
    owner,
    keys,
    maxAgeMs: config.snapshotMaxAgeMs,
    nowMs: Date.now(),
    log,
  })
  const reports = new GuestReports(now, () => Date.now())
  const links = new LinkIndex(view, (one) => {
    const link = linkOf(config.firewall.link, one)
    return link.ok ? link.value : undefined
  })
  const indexLinks = (id: string) => {
    if (config.linkLocal.length > 0) links.changed(id)
  }
  for (const saved of instances) {
    view.replace(saved)
    indexLinks(saved.instance.id)
    const served = view.get(saved.instance.id)
    if (served !== undefined && saved.reports !== undefined) reports.restore(served, saved.reports)
  }
  const held = new HeldRequests()
  view.onChange((id) => {
    indexLinks(id) // before held requests are checked
    held.changed(id)
  })
  let lookUp: PeerOwners['lookUp'] = () => undefined
  let firewallWait = config.needsFirewall ? describeFirewallWait(config.listen) : undefined
  const owners: PeerOwners = {
    find: (network, address) => (firewallWait === undefined ? view.find(network, address) : { kind: 'unknown' }),
    findByLink: (network, link) => (firewallWait === undefined ? links.find(network, link) : { kind: 'unknown' }),
    lookUp: (network, address) => (firewallWait === undefined ? lookUp(network, address) : undefined),
  }
  const isLinkLocal = (host: string) => config.linkLocal.includes(host)
  const maxPerListener = maxConnections(readLimits(), config.listen.length)
  const shares = new Shares(config.share, UNKNOWN_PEERS)
  const sweeps = setInterval(() => {
    shares.sweep(now())
  }, CHECK_INTERVAL_MS)
  const rules = { tokens, forwarded: config.forwarded, limitHops, issuerOf: identity.issuerOf }
  const refusalLog = new RefusalLog(log, now)
  const servers = config.listen.map(({ network }) =>
    buildGuestServer({
      network,
      maxConnections: maxPerListener,
      owners,
      isLinkLocal,
      shares,
      rules,
      meter,
      traces,
      refusalLog,
      held,
      reports,
      log,
    }),
  )
  const firewallReady = () => {
    if (firewallWait === undefined) return
    firewallWait = undefined
    // their buffers may contain requests that the rules would have kept out
    for (const { server } of servers) server.closeAllConnections()
    log.info('the firewall has applied its rules; guests are answered')
  }
  const stop = async () => {
    clearInterval(sweeps)
    held.stop()
    await Promise.all(servers.map((server) => server.close()))
  }
  try {
    const guests: GuestAddress[] = []
    for (const [i, server] of servers.entries()) {
      const listener = config.listen[i]!
      guests.push({ network: listener.network, ...(await listen(server, listener, 'IMDS_LISTEN')) })
    }
    if (config.firewall.required && !guests.every(({ host }) => isOneAddress(host)))
      throw new StartFailure(ALL_ADDRESSES)
    const unopened = describeUnopened(config, guests)
    if (unopened !== undefined) throw new StartFailure(unopened)
    warnOfOverruled(config, guests, log)
    for (const { network, problem } of config.unserved) log.warn({ network }, problem)
    if (firewallWait !== undefined) log.warn(firewallWait)
    return {
      view,
      meter,
      traces,
      held,
      reports,
      owner,
      keys,
      restored,
      guests,
      peersAt: (host) => peersOf(host, isLinkLocal, owners),
      preloadIdentity: async () => {
        await identity.preload()
      },
      setLookUp: (by) => {
        lookUp = by
      },
      firewallWait: () => firewallWait,
      firewallReady,
      stop,
    }
  } catch (error) {
    await stop()
    throw error
  }
}
