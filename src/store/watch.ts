/**
 * How does the view follow the store?
 *
 * A notice is a hint, the key is the truth (invariant 4): a notice only marks an id dirty; what counts is what is then read. Every
 * (re)connect and a slow timer end in a resync, which compares digests and reads what differs. One loop does all reading, notices
 * before the rest of a resync, so answers cannot overtake each other and a change is not kept waiting by 10,000 others.
 *
 * A guest may also be met before its notice: `welcome` reads whoever has its address. If that record claims the address and names another
 * host the guest is a visitor: read again every 10 s, forgotten when it no longer asks, and never kept on disk.
 *
 * Nothing leaves the view because it is missing (invariant 8): only a tombstone or a record that names other hypervisors does that.
 * What is faulty changes nothing (invariant 3); it is counted, and told once for each state of it.
 */
import type { Logger } from 'pino'
import { assemble, owns, type AssemblyFault } from './assemble.ts'
import type { Loaded, Source } from './source.ts'
import { Told } from './told.ts'
import type { View } from './view.ts'

const BATCH = 100
const RETRY_MS = 1000
const VISIT_MS = 10_000
/** After a reconnect a host that has a view waits up to so long, so that a thousand hosts do not storm a new primary. */
const RESYNC_JITTER_MS = 2000

/** The counters that following a store moves. */
export interface WatchMetrics {
  readonly notices: { inc(): void }
  readonly resyncs: { inc(labels: { result: 'completed' | 'failed' | 'uninitialised' }): void }
  readonly recordFaults: { inc(labels: { reason: AssemblyFault['reason'] }): void }
  readonly revisionsBack: { inc(): void }
}

/** Everything that a watch needs. */
export interface WatchParts {
  readonly source: Source
  readonly view: View
  /** Our name, or null to take every instance of the store (files on a single host). */
  readonly hypervisor: string | null
  readonly userDataMaxBytes: number
  readonly resyncMs: number
  /** Called after the view changed. */
  readonly changed: () => void
  /** Called when the view was found to be in step with the store. */
  readonly confirmed: () => void
  readonly metrics: WatchMetrics
  readonly log: Logger
}

/** Why an id is read: a notice named it, a resync found it to differ or to be missing, or the store's index said that it has a guest's address. */
type Origin = 'notice' | 'index' | { readonly network: string, readonly address: string }

/** How the view stands to the store. */
export interface WatchStatus {
  readonly connected: boolean
  /** A full resync has completed since the start. */
  readonly ready: boolean
  /** When the last full resync completed, in milliseconds of `performance.now()`; undefined before the first. */
  readonly resyncedAtMs: number | undefined
  /** How long that took, from its first question to the last instance in the view. */
  readonly resyncTookMs: number
  /** Instances that we hold and the store no longer knows: kept, and worth an operator's look. */
  readonly unconfirmed: number
  /** Ids whose record in the store is faulty now. */
  readonly faulty: number
}

/** Follows a store until stopped. */
export class Watch {
  readonly #parts: WatchParts
  readonly #dirty = new Set<string>()
  /** What the resync under way still has to read; undefined when none is. */
  #stale: Set<string> | undefined
  /** Id -> digest of what was read last, for ids that run elsewhere: unchanged needs no second reading. */
  readonly #elsewhere = new Map<string, string>()
  readonly #told: Told
  #connected = false
  #resyncWanted = false
  #working = false
  #stopped = false
  #resyncedAtMs: number | undefined
  #resyncBeganAtMs = 0
  #resyncTookMs = 0
  readonly #timers = new Set<NodeJS.Timeout>()

  constructor(parts: WatchParts) {
    this.#parts = parts
    this.#told = new Told(parts.view, parts.metrics.recordFaults, parts.log)
  }

  start(): void {
    const { source, metrics } = this.#parts
    source.start({
      notice: (id) => {
        metrics.notices.inc()
        this.#dirty.add(id)
        this.#resyncWanted ||= this.#resyncedAtMs === undefined
        this.#work()
      },
      connected: () => {
        this.#told.connected(source.description)
        this.#connected = true
        const jitter = this.#resyncedAtMs === undefined ? 0 : Math.random() * RESYNC_JITTER_MS
        this.#later(jitter, () => { this.resync() })
      },
      disconnected: (reason) => {
        this.#told.lost(source.description, reason, this.#connected)
        this.#connected = false
      },
    })
    this.#scheduleResync()
    this.#scheduleVisits()
  }

  async stop(): Promise<void> {
    this.#stopped = true
    for (const timer of this.#timers) clearTimeout(timer)
    await this.#parts.source.stop()
  }

  /** Asks for a full resync as soon as the store can be asked. */
  resync(): void {
    this.#resyncWanted = true
    this.#work()
  }

  /** Reads whoever has an address into the view, whether its record names this host or not. Rejects when the store does not answer. */
  async welcome(network: string, address: string): Promise<void> {
    const id = await this.#parts.source.owner(network, address)
    if (id === null) return
    for (const loaded of await this.#parts.source.load([id])) this.#applySafely(loaded, { network, address })
    this.#settleContested()
    this.#work()
  }

  status(): WatchStatus {
    return {
      connected: this.#connected, ready: this.#resyncedAtMs !== undefined, resyncedAtMs: this.#resyncedAtMs, resyncTookMs: this.#resyncTookMs,
      unconfirmed: this.#told.unconfirmed, faulty: this.#told.faulty,
    }
  }

  /** Keeps the one loop going while there is something to do and a store to ask. */
  #work(): void {
    if (this.#working || this.#stopped || !this.#connected) return
    this.#working = true
    this.#loop().catch((error: unknown) => {
      if (this.#stopped || !this.#connected) return // a store that went away is told as that; what it has is asked for when it is back
      this.#parts.metrics.resyncs.inc({ result: 'failed' })
      this.#parts.log.warn({ err: error }, 'reading the store failed: trying again')
      this.#resyncWanted = true
      this.#later(RETRY_MS * (1 + Math.random()), () => { this.#work() })
    }).finally(() => { this.#working = false })
  }

  async #loop(): Promise<void> {
    while (!this.#stopped && this.#connected) {
      if (this.#dirty.size > 0) await this.#readSome(this.#dirty, 'notice')
      else if (this.#resyncWanted) await this.#beginResync()
      else if (this.#stale !== undefined && this.#stale.size > 0) await this.#readSome(this.#stale, 'index')
      else if (this.#stale !== undefined) this.#completeResync()
      else return
    }
  }

  async #beginResync(): Promise<void> {
    const { source, view, metrics } = this.#parts
    this.#resyncWanted = false
    this.#stale = undefined
    this.#resyncBeganAtMs = performance.now()
    const { initialised, digests } = await source.index()
    if (!initialised) {
      metrics.resyncs.inc({ result: 'uninitialised' })
      this.#told.allAbsent(source.description)
      return
    }
    this.#told.initialised()
    this.#stale = new Set()
    for (const [id, digest] of digests) {
      const isKnown = (view.get(id)?.digest ?? this.#elsewhere.get(id)) === digest
      if (isKnown) this.#told.present(id)
      if (!isKnown || this.#told.isFaulty(id)) this.#stale.add(id)
    }
    for (const id of view.ids()) if (!digests.has(id) && view.get(id)?.visiting !== true) this.#stale.add(id)
    this.#told.keepFaultsOf(digests)
    for (const id of this.#elsewhere.keys()) {
      if (!digests.has(id)) this.#elsewhere.delete(id)
    }
  }

  #completeResync(): void {
    const { view, metrics, log, confirmed } = this.#parts
    this.#stale = undefined
    if (this.#resyncedAtMs === undefined) log.info({ instances: view.size, faulty: this.#told.faulty }, 'first resync completed: ready')
    this.#resyncedAtMs = performance.now()
    this.#resyncTookMs = this.#resyncedAtMs - this.#resyncBeganAtMs
    metrics.resyncs.inc({ result: 'completed' })
    confirmed()
  }

  async #readSome(ids: Set<string>, origin: Origin): Promise<void> {
    const some = [...ids.values().take(BATCH)]
    for (const id of some) ids.delete(id)
    for (const loaded of await this.#parts.source.load(some)) this.#applySafely(loaded, origin)
    this.#settleContested()
  }

  /** A record that meets a bug of ours costs one instance, not the host's following of the store. */
  #applySafely(loaded: Loaded, origin: Origin): void {
    try {
      this.#apply(loaded, origin)
    } catch (error) {
      this.#parts.log.error({ err: error, instance: loaded.id }, 'a record could not be processed')
      this.#told.fault(loaded.id, 'digest' in loaded ? loaded.digest : '', { reason: 'record', faults: [{ path: '', message: 'could not be processed' }] })
    }
  }

  /** A visitor's address that somebody else claims now is most likely not the visitor's any more: its record is read again at once. */
  #settleContested(): void {
    for (const id of this.#told.contested()) {
      if (this.#parts.view.get(id)?.visiting === true) this.#dirty.add(id)
    }
  }

  #apply(loaded: Loaded, origin: Origin): void {
    const { view, hypervisor, userDataMaxBytes } = this.#parts
    const { id } = loaded
    if (loaded.kind === 'absent') {
      if (view.get(id)?.visiting !== true && (view.get(id) !== undefined || origin === 'index')) this.#told.absent(id)
      return
    }
    this.#told.present(id)
    if (loaded.kind === 'removed') {
      this.#forget(id, 'removed')
      return
    }
    const assembled = assemble(loaded, userDataMaxBytes)
    if ('reason' in assembled) {
      this.#told.fault(id, loaded.digest, assembled)
      return
    }
    this.#told.good(id)
    const isOurs = hypervisor === null || assembled.instance.hypervisors.includes(hypervisor)
    if (!isOurs && !(typeof origin === 'object' && owns(assembled.instance, origin)) && view.get(id)?.visiting !== true) {
      this.#elsewhere.set(id, loaded.digest)
      this.#forget(id, 'runs elsewhere')
      return
    }
    this.#elsewhere.delete(id)
    const before = view.get(id)
    if (before?.digest === loaded.digest && before.visiting === !isOurs) return
    const { revision } = assembled.instance
    if (before !== undefined && revision < before.instance.revision) {
      this.#parts.metrics.revisionsBack.inc()
      this.#parts.log.warn({ instance: id, revision, heldRevision: before.instance.revision }, 'the store went back to an older revision: taken as it is')
    }
    view.replace(assembled, !isOurs)
    if (isOurs || before?.visiting === false) this.#parts.changed()
    this.#parts.log.debug({ instance: id, revision }, 'instance taken into the view')
  }

  #forget(id: string, why: string): void {
    this.#told.good(id)
    this.#told.present(id)
    const { view, changed } = this.#parts
    const isVisitor = view.get(id)?.visiting === true
    if (!view.remove(id)) return
    if (!isVisitor) changed()
    this.#parts.log.debug({ instance: id, why }, 'instance left the view')
  }

  #scheduleResync(): void {
    this.#later(this.#parts.resyncMs * (0.75 + Math.random() / 2), () => {
      this.resync()
      this.#scheduleResync()
    })
  }

  #scheduleVisits(): void {
    this.#later(VISIT_MS, () => {
      for (const held of this.#parts.view.held().filter(({ visiting }) => visiting)) {
        if (held.asked) this.#dirty.add(held.instance.id)
        else this.#forget(held.instance.id, 'visited')
        held.asked = false
      }
      this.#work()
      this.#scheduleVisits()
    })
  }

  #later(delayMs: number, task: () => void): void {
    const timer = setTimeout(() => {
      this.#timers.delete(timer)
      if (!this.#stopped) task()
    }, delayMs)
    this.#timers.add(timer)
  }
}
