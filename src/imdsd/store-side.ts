/**
 * The store's side of imdsd: what reads the store and follows it (sync, the journal, the firewall), how the
 * daemon announces itself there, and what writes the reports of guests.
 */
import { randomBytes } from 'node:crypto'
import { setImmediate as turn } from 'node:timers/promises'
import { VERSION } from '../runtime/installation.ts'
import { loadYaml } from '../store/document.ts'
import { RECENT_MS } from '../store/fleet.ts'
import type { Announcement } from '../store/redis/source.ts'
import type { Source } from '../store/source.ts'
import { Firewall } from './firewall/firewall.ts'
import { Persistence, type JournalProblem } from './journal/persistence.ts'
import { StaleMark } from './journal/stale-mark.ts'
import { journalPath } from './journal/state-files.ts'
import { buildPeerLookup } from './view/peer-lookup.ts'
import { ReportWriter } from './view/report-writer.ts'
import { Sync } from './view/sync.ts'
import type { BackgroundParts } from './guest-side.ts'
import type { Metrics } from './metrics.ts'

/** How long a change waits for the disk. A busy disk needs a second. */
const DISK_TIMEOUT_MS = 5_000
/** The pause after the disk has failed. */
const DISK_RETRY_MS = 30_000
/** An announcement of which more than 1024 bytes would be read is of no use. */
const MAX_ANNOUNCED_KEYS = 8
/** The pause after a report could not be written to the store. */
const REPORT_RETRY_MS = 2_000

/**
 * What the store's side is built of. `openSource`: opens the store.
 */
export interface StoreSideParts extends BackgroundParts {
  readonly openSource: typeof openSource
  /** What the conditions are found in has changed. */
  readonly onChange: () => void
  readonly metrics: Metrics
}

/** `viewAgeSeconds`: the time since the view was known to be what the store has. */
export interface StoreSide {
  readonly source: Source
  readonly sync: Sync
  readonly firewall: Firewall
  readonly viewAgeSeconds: () => number
  /** Whether another daemon announces itself with the name of this hypervisor. */
  readonly isDuplicate: () => boolean
  /** Why Redis does not let the daemon announce itself, or write what guests report. */
  readonly writeFailure: () => string | undefined
  readonly journalProblem: () => JournalProblem | undefined
  /** Disconnects from the store, and completes the journal. */
  readonly stop: () => Promise<void>
}

/** Builds the store's side, and starts lookups of unknown peers. It does not connect before `sync.start()`. */
export async function buildStoreSide(parts: StoreSideParts): Promise<StoreSide> {
  const { config, now, guestSide, metrics, log } = parts
  const { view, restored, reports } = guestSide
  const { isDuplicate, writeFailure, ...announcement } = buildAnnouncement(parts, () => sync.status().lagMs)
  const source = await parts.openSource(parts, announcement)
  const reportWriter = buildReportWriter(parts, source)
  const persistence = buildPersistence(parts)
  const firewall = buildFirewall(parts, persistence)
  reports.onReport((id) => {
    const served = view.get(id)
    const all = served && reports.of(served)
    if (all !== undefined) void persistence.append({ kind: 'reported', id, reports: all }, false, () => undefined)
    reportWriter?.noteReport(id)
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
    onChange: parts.onChange,
    onResync: (beganAtMs, isFirst) => {
      void turn().then(() => source.announce?.()) // sync then knows that it has caught up
      firewall.documents.noteComplete()
      persistence.noteResync(Date.now() - (now() - beganAtMs))
      if (isFirst) reportWriter?.writeAll()
      reportWriter?.wake()
    },
  })
  const lookUp = buildPeerLookup({
    find: (network, address) => view.find(network, address),
    lookUp: (network, address) => sync.lookUp(network, address),
    canAsk: () => sync.status().connected,
    lookups: metrics.lookups,
    now,
  })
  // with rules, a packet of an unknown peer has come by those of before
  if (!config.firewall.required) guestSide.finder.setLookUp(lookUp)
  const startedAtMs = now() - Math.max(0, restored.ageMs ?? now())
  return {
    source,
    sync,
    firewall,
    isDuplicate,
    writeFailure: () => writeFailure() ?? reportWriter?.failure,
    journalProblem: () => persistence.problem,
    viewAgeSeconds: () => (now() - (sync.status().resyncedAtMs ?? startedAtMs)) / 1000,
    stop: async () => {
      await reportWriter?.stop()
      await sync.stop()
      await persistence.stop()
    },
  }
}

export async function openSource(
  { config, guestSide }: Pick<StoreSideParts, 'config' | 'guestSide'>,
  announcement: Announcement,
): Promise<Source> {
  const { store, userDataMaxBytes } = config
  if (store.kind === 'files') {
    const { buildFileSource } = await import('../store/files/source.ts')
    await loadYaml()
    return buildFileSource(store.directory, userDataMaxBytes)
  }
  const { RedisSource } = await import('../store/redis/source.ts')
  const { region, hypervisor } = store
  const { cipher } = guestSide.keys
  return new RedisSource({ settings: store, region, hypervisor, cipher, userDataMaxBytes, announcement })
}

/** How this daemon announces itself in the store. */
function buildAnnouncement(
  { guestSide, now }: StoreSideParts,
  lagMs: () => number,
): Announcement & Pick<StoreSide, 'isDuplicate' | 'writeFailure'> {
  let failure: string | undefined
  let otherFoundMs = -Infinity
  const isDuplicate = () => now() - otherFoundMs < RECENT_MS
  return {
    id: randomBytes(8).toString('hex'),
    isDuplicate,
    writeFailure: () => failure,
    foundOther: () => {
      otherFoundMs = now()
    },
    state: () => ({
      version: VERSION,
      instances: guestSide.view.size,
      lagSeconds: Math.floor(lagMs() / 1000),
      ...(isDuplicate() && { duplicate: true }),
      recordKeys: (guestSide.keys.cipher?.names ?? []).slice(0, MAX_ANNOUNCED_KEYS),
    }),
    written: (reason) => {
      failure = reason
    },
  }
}

/** Undefined: the store keeps no reports. */
function buildReportWriter(
  { config, guestSide: { view, reports }, metrics }: StoreSideParts,
  { reports: store }: Source,
): ReportWriter | undefined {
  const { hypervisor } = config.store
  if (store === undefined || hypervisor === undefined) return undefined
  const writer = new ReportWriter({
    store,
    hypervisor,
    find: (id) => view.get(id),
    reports,
    instances: () => view.instances(),
    writes: metrics.reportWrites,
    retryMs: REPORT_RETRY_MS,
  })
  view.onChange((id) => writer.noteChange(id))
  return writer
}

function buildPersistence({ config, guestSide, disk, metrics }: StoreSideParts): Persistence {
  const { view, owner, keys, restored, reports } = guestSide
  return new Persistence({
    disk,
    path: journalPath(config.stateDirectory),
    stale: new StaleMark(config.operatorSocket),
    owner,
    keys,
    restored,
    timeoutMs: DISK_TIMEOUT_MS,
    retryMs: DISK_RETRY_MS,
    view,
    reportsOf: (id) => reports.of(view.get(id)!),
    comparedAtMs: Date.now() - (restored.ageMs ?? 0),
    journalWrites: metrics.journalWrites,
    journalRewrites: metrics.journalRewrites,
  })
}

function buildFirewall({ config, guestSide, now }: StoreSideParts, persistence: Persistence): Firewall {
  const { view, finder } = guestSide
  const firewall = new Firewall({
    ...config.firewall,
    view,
    now,
    startId: randomBytes(4).toString('hex'),
    onConfirmed: (version, wasFresh) => {
      if (!wasFresh) guestSide.endFirewallWait()
      if (view.noteRules(version)) persistence.noteUnconfirmed()
    },
  })
  finder.setFirewall(() => firewall.isFresh())
  view.onChange((id) => firewall.documents.note(id))
  return firewall
}
