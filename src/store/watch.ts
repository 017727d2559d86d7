/**
 * Keeps the view in step with the store.
 *
 * A notice is a hint, the key is the truth (invariant 4): a notice only marks an id dirty; what counts is what is then read. Every
 * (re)connect and a slow timer end in a resync, which compares digests and reads what differs. One loop does all reading, notices
 * before the rest of a resync, so answers cannot overtake each other and a change is not kept waiting by 10,000 others.
 *
 * `lookUp` reads the instance that owns an unknown peer's address, whose notice may have been missed.
 *
 * What is read changes the view as `plan` says. What is faulty is counted, and logged once for each state of it.
 */
import type { Logger } from 'pino'
import type { Instance } from '../metadata/instance.ts'
import type { Assembled, AssemblyFault } from './assemble.ts'
import { plan, type Origin } from './plan.ts'
import type { Loaded, Source } from './source.ts'
import { Told } from './told.ts'
import type { View } from './view.ts'

const BATCH = 100
const RETRY_MS = 1000
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
  /** Id -> digest of what was read last, for ids that the index names although they run elsewhere: unchanged needs no second reading. */
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

  /** Reads the instance that owns an address into the view, if its record names this hypervisor. Rejects when the store does not answer. */
  async lookUp(network: string, address: string): Promise<void> {
    const id = await this.#parts.source.owner(network, address)
    if (id === null) return
    for (const loaded of await this.#parts.source.load([id])) this.#applySafely(loaded, 'peer')
    this.#told.contested()
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
    for (const id of view.ids()) if (!digests.has(id)) this.#stale.add(id)
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
    this.#told.contested()
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

  #apply(loaded: Loaded, origin: Origin): void {
    const { id } = loaded
    const planned = plan(loaded, this.#parts.view.get(id), origin, this.#parts)
    if (planned.kind === 'ignore') return
    if (planned.kind === 'keep-absent') {
      this.#told.absent(id)
      return
    }
    this.#told.present(id)
    if (planned.kind === 'fault') {
      this.#told.fault(id, planned.digest, planned.fault)
      return
    }
    this.#told.good(id)
    this.#elsewhere.delete(id)
    if (planned.kind === 'replace') this.#replace(planned.assembled)
    if (planned.kind !== 'remove') return
    const { movedTo } = planned
    if (movedTo !== null && origin === 'index') this.#elsewhere.set(id, movedTo.digest)
    this.#remove(id, movedTo?.instance)
  }

  #replace(assembled: Assembled): void {
    const { view, metrics, log, changed } = this.#parts
    const { id, revision } = assembled.instance
    const before = view.get(id)
    if (before !== undefined && revision < before.instance.revision) {
      metrics.revisionsBack.inc()
      log.warn({ instance: id, revision, heldRevision: before.instance.revision }, 'the store went back to an older revision: taken as it is')
    }
    view.replace(assembled)
    changed()
    log.debug({ instance: id, revision }, 'instance taken into the view')
  }

  #remove(id: string, movedTo: Instance | undefined): void {
    const { view, log, changed } = this.#parts
    if (!view.remove(id)) return
    changed()
    if (movedTo === undefined) log.debug({ instance: id }, 'instance left the view: it was removed')
    else log.info({ instance: id, revision: movedTo.revision, hypervisors: movedTo.hypervisors }, 'instance left this hypervisor: its record names others')
  }

  #scheduleResync(): void {
    this.#later(this.#parts.resyncMs * (0.75 + Math.random() / 2), () => {
      this.resync()
      this.#scheduleResync()
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
