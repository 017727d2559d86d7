/** The parts of imdsd that follow the store and the view. */
import { randomBytes } from 'node:crypto'
import type { Logger } from 'pino'
import type { ReportWriter } from './view/report-writer.ts'
import type { Disk } from './journal/disk.ts'
import { snapshotPath } from './journal/state-files.ts'
import type { Firewall } from './firewall/firewall.ts'
import { withoutUnconfirmedLinks } from './firewall/link.ts'
import type { Source } from '../store/source.ts'
import type { Persistence } from './journal/persistence.ts'
import type { Sync } from './view/sync.ts'
import type { Config } from './config.ts'
import type { GuestSide } from './guest-side.ts'
import type { Metrics } from './metrics.ts'

/** How long a change waits for the disk. A busy disk needs a second. */
const DISK_TIMEOUT_MS = 5_000
/** The pause after the disk has failed. */
const DISK_RETRY_MS = 30_000

interface FollowersParts {
  readonly config: Config
  readonly log: Logger
  readonly now: () => number
  readonly guestSide: GuestSide
  readonly disk: Disk
  readonly source: Source
  readonly metrics: Metrics
  /** Undefined: the store keeps no reports. */
  readonly reportWriter: ReportWriter | undefined
}

/** What follows the store and the view. */
export interface Followers {
  readonly sync: Sync
  readonly persistence: Persistence
  readonly firewall: Firewall
  /** The time since the view was known to be what the store has. */
  readonly viewAgeSeconds: () => number
}

/**
 * Builds the parts that follow the store and the view: sync, the files of the view and the firewall. Starts lookups of
 * unknown peers.
 */
export async function startFollowers(parts: FollowersParts): Promise<Followers> {
  const { config, log, now, guestSide, disk, source, metrics, reportWriter } = parts
  const { view, keys, restored, reports } = guestSide
  const [{ Firewall }, { Sync }, { PeerLookup }, { Persistence }] = await Promise.all([
    import('./firewall/firewall.ts'),
    import('./view/sync.ts'),
    import('./view/peer-lookup.ts'),
    import('./journal/persistence.ts'),
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
  const instances = () =>
    withoutUnconfirmedLinks(
      config.firewall.link,
      view
        .instances()
        .map(({ instance }) => instance)
        .toArray(),
      (id) => view.isUnconfirmed(id),
    )
  const startId = randomBytes(4).toString('hex')
  const firewall = new Firewall({
    ...config.firewall,
    instances,
    now,
    startId,
    firstApplied: () => {
      guestSide.firewallReady()
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
  guestSide.setLookUp((network, address) => peerLookup.lookUp(network, address))
  return {
    sync,
    persistence,
    firewall,
    viewAgeSeconds: () => (now() - (sync.status().resyncedAtMs ?? startedAtMs)) / 1000,
  }
}
