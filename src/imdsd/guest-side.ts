/**
 * The guest side of the daemon: the view, filled from the state directory, and the servers of guests. It is small, so
 * that guests are answered soon after the start; daemon.ts loads and starts everything else afterwards.
 *
 * If only the firewall separates several networks, every peer is an unknown peer while its rules are not confirmed.
 */
import type { FastifyInstance } from 'fastify'
import type { Log } from '../runtime/log-codes.ts'
import type { Config } from './config.ts'
import { LastRequests } from './guest/last-requests.ts'
import { CHECK_INTERVAL_MS } from './guest/connections.ts'
import { HeldRequests } from './guest/held-requests.ts'
import { GuestReports } from './guest/reports.ts'
import { limitHops } from './guest/hop-limit.ts'
import { RequestMeter } from './guest/meter.ts'
import { RefusalLog } from './guest/refusal-log.ts'
import { buildGuestServer, type GuestServerParts } from './guest/server.ts'
import { Shares, UNKNOWN_PEERS } from './guest/share.ts'
import { ownTokenKey } from './guest/token-key.ts'
import { Tokens, tokenTime } from './guest/token.ts'
import { ViewGuestFinder } from './guest-finder.ts'
import { stateKeys, stateOwner } from './state-owner.ts'
import { buildIdentity, type Identity } from '../identity/identity.ts'
import { isOneAddress } from '../metadata/address.ts'
import { compareListeners, type GuestListenAddress } from '../runtime/guest-listeners.ts'
import { listen, maxConnections, readLimits, StartFailure } from '../runtime/listen.ts'
import type { Disk } from './journal/disk.ts'
import { replay, restoreView, type Restored } from './journal/restore.ts'
import { StaleMark } from './journal/stale-mark.ts'
import { journalPath, type StateKeys, type StateOwner } from './journal/state-files.ts'
import { View } from './view/view.ts'

const ALL_ADDRESSES =
  'IMDS_LISTEN: with IMDS_FIREWALL=required each listener needs a specific address, not 0.0.0.0 or ::, ' +
  'since the firewall rules name addresses'

export interface GuestSide extends Pick<GuestParts, 'view' | 'meter' | 'requests' | 'held' | 'reports' | 'finder'> {
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly restored: Omit<Restored, 'changes'>
  readonly guests: readonly GuestListenAddress[]
  /** Where IMDS_LISTEN says that guests are served, and no socket of systemd listens. */
  readonly unserved: readonly string[]
  /** Loads what signs for guests, so that the first signature does not wait for it. */
  preloadIdentity(): Promise<unknown>
  /** Rules are confirmed after a time without: if guests were not answered then, they are from now on. */
  endFirewallWait(): void
  stop(): Promise<void>
}

/** What the rest of the daemon is built of. `now`: monotonic, in ms. */
export interface BackgroundParts {
  readonly config: Config
  readonly log: Log
  readonly now: () => number
  readonly guestSide: GuestSide
  readonly disk: Disk
}

/** What all servers of guests have in common. `onChange` of the view updates the rest. */
export type GuestParts = Omit<GuestServerParts, 'network' | 'maxConnections' | 'finder'> & {
  readonly view: View
  readonly finder: ViewGuestFinder
}

/** Builds what answers guests, with an empty view. `now`: monotonic, in ms. */
export function buildGuestParts(
  config: Config,
  secrets: readonly Uint8Array[],
  { signer, mintToken }: Pick<Identity, 'signer' | 'mintToken'>,
  log: Log,
  now: () => number,
): GuestParts {
  const wall = () => Date.now()
  const view = new View({ ...config.provider, ...(signer && { signer }) }, now, config.firewall.required)
  const held = new HeldRequests()
  const finder = new ViewGuestFinder(config, view)
  view.onChange((id) => held.wake(id))
  const tokens = new Tokens(secrets, tokenTime(wall, now))
  return {
    view,
    finder,
    held,
    reports: new GuestReports(now, wall),
    shares: new Shares(config.share, UNKNOWN_PEERS),
    rules: { tokens, forwarded: config.forwarded, limitHops, mintToken },
    meter: new RequestMeter(),
    requests: new LastRequests(),
    refusalLog: new RefusalLog(log, now),
    log,
  }
}

/**
 * Restores the view and opens the listeners. Rejects if one cannot be opened, and leaves nothing running. `disk`:
 * of the state directory. `now`: monotonic, in ms.
 */
export async function startGuestSide(config: Config, disk: Disk, log: Log, now: () => number): Promise<GuestSide> {
  const secrets = config.tokenKeys ?? [ownTokenKey(config.stateDirectory, log)]
  const identity = buildIdentity(config.identity, () => Date.now())
  const parts = buildGuestParts(config, secrets, identity, log, now)
  const { view, held, reports, shares } = parts
  const state = await restoreState(config, secrets, view, reports, disk, log)
  const connections = maxConnections(readLimits(), config.listen.length)
  const servers = config.listen.map(({ network }) =>
    buildGuestServer({ ...parts, network, maxConnections: connections }),
  )
  const sweeps = setInterval(() => shares.sweep(now()), CHECK_INTERVAL_MS)
  const stop = async () => {
    clearInterval(sweeps)
    held.stop()
    await Promise.all(servers.map((server) => server.close()))
  }
  const guests = await openListeners(config, servers).catch(async (error: unknown) => {
    await stop()
    throw error
  })
  return {
    ...state,
    ...parts,
    guests,
    unserved: compareListeners(config.expected, guests).unserved,
    preloadIdentity: () => identity.preload(),
    endFirewallWait: () => {
      if (!config.needsFirewall) return
      // their buffers may contain requests that the rules would have kept out
      for (const { server } of servers) server.closeAllConnections()
      log.info('the firewall has applied its rules; guests are answered')
    },
    stop,
  }
}

/** Fills the view and the reports of guests from the state directory. */
export async function restoreState(
  { store, stateDirectory, operatorSocket, journalMaxAgeMs }: Config,
  secrets: readonly Uint8Array[],
  view: View,
  reports: GuestReports,
  disk: Disk,
  log: Log,
): Promise<Pick<GuestSide, 'owner' | 'keys' | 'restored'>> {
  const owner = stateOwner(store)
  const keys = stateKeys(store, secrets)
  const { changes, ...restored } = await restoreView({
    disk,
    path: journalPath(stateDirectory),
    stale: new StaleMark(operatorSocket),
    owner,
    keys,
    maxAgeMs: journalMaxAgeMs,
    nowMs: Date.now(),
    log,
  })
  replay(changes, view, (id, all) => {
    const served = view.get(id)
    if (served !== undefined) reports.restore(served, all)
  })
  return { owner, keys, restored }
}

/** Opens the listeners. Rejects with a StartFailure. */
async function openListeners(
  config: Config,
  servers: readonly FastifyInstance[],
): Promise<readonly GuestListenAddress[]> {
  const guests: GuestListenAddress[] = []
  for (const [i, server] of servers.entries()) {
    const listener = config.listen[i]!
    guests.push({ network: listener.network, ...(await listen(server, listener, 'IMDS_LISTEN')) })
  }
  if (config.firewall.required && !guests.every(({ host }) => isOneAddress(host))) throw new StartFailure(ALL_ADDRESSES)
  return guests
}
