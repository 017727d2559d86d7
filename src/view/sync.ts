/**
 * Keeps the view in step with the store.
 *
 * A notice is a hint, the key is the truth (invariant 4): a notice only marks an id dirty; what counts is what is then read. Every
 * (re)connect and a slow timer end in a resync, which compares digests and reads what differs. An unknown peer, whose notice may have been
 * missed, is looked up by its address.
 *
 * One loop does all reading of records, one read at a time. So of two states of a record the older one is never applied last, whatever
 * connections the store's answers take. An iteration of the loop reads one batch of ids, taken in turn from look-ups, notices and the resync,
 * and then the index if a resync is due. So none of them holds up the others: a batch has up to BATCH ids (fewer where user-data may be
 * long: #batchSize), each kind has a third of it for sure, and n ids are read within n / 33 iterations (n / 3 in the smallest batches),
 * rounded up, whatever else arrives. Within each kind the order is first come, first served; an id that is named again while it waits is
 * read once. A resync that is asked for while another is under way begins when that one is complete. What could not be read is read again,
 * after 1 to 2 s, so a resync completes even if connections are lost again and again.
 *
 * Guests are answered meanwhile: the source reads a batch in parts that are bounded in bytes, each instance is applied when it is read, and
 * a TurnBudget ends the turn of the event loop after a few milliseconds. Beyond the view, a resync holds the ids and one such part.
 *
 * What is read changes the view as `plan` says. What is faulty is counted, and logged once for each state of it.
 * Where nearly all that the index names is faulty (problem.ts) a resync confirms nothing: sync is not ready, and the view stays.
 */
import type { Logger } from 'pino'
import type { Instance } from '../metadata/instance.ts'
import type { Assembled, AssemblyFault } from './validate.ts'
import { plan, type Origin } from './plan.ts'
import { formatStoreProblem } from './store-problem.ts'
import type { Loaded, Source } from '../store/source.ts'
import { RecordHealth } from './record-health.ts'
import { TurnBudget } from '../runtime/turn-budget.ts'
import type { View } from './view.ts'

/** The most ids in one batch. */
const BATCH = 100
/** Where user-data may be long a batch has fewer ids, SMALL_BATCH at least, so that its user-data has at most about so many bytes. */
const BATCH_BYTES = 64 * 1024 * 1024
const SMALL_BATCH = 10
const RETRY_MS = 1000
/** After a reconnect a host that has a view waits up to so long, so that a thousand hosts do not storm a new primary. */
const RESYNC_JITTER_MS = 2000

/** The counters that following a store moves. */
export interface SyncMetrics {
  readonly notices: { inc(): void }
  readonly resyncs: { inc(labels: { result: 'completed' | 'failed' | 'uninitialised' }): void }
  readonly recordFaults: { inc(labels: { reason: AssemblyFault['reason'] }): void }
  readonly revisionsBack: { inc(): void }
}

/** Everything that sync needs. */
export interface SyncParts {
  readonly source: Source
  readonly view: View
  /** Our name, or null to take every instance of the store (files on a single host). */
  readonly hypervisor: string | null
  readonly userDataMaxBytes: number
  readonly resyncMs: number
  /** Called after the view changed. */
  readonly changed: () => void
  /** Called when the view was found to be in step with the store: never for a store whose records cannot be used. */
  readonly confirmed: () => void
  readonly metrics: SyncMetrics
  readonly log: Logger
}

/** How the view stands to the store. */
export interface SyncStatus {
  readonly connected: boolean
  /** It was connected at some time since the start. */
  readonly wasConnected: boolean
  /** Since when it is connected or not, in milliseconds of `performance.now()`. */
  readonly changedAtMs: number
  /** Why it is not connected; undefined when it is, or was not tried yet. */
  readonly lossReason: string | undefined
  /** A full resync has completed since the start, and the last one found records that can be used. */
  readonly ready: boolean
  /** Why it is not ready, as a sentence; null when it is. */
  readonly problem: string | null
  /** Nearly all records that the store has for this hypervisor are faulty. */
  readonly isStoreUnusable: boolean
  /** When the view was last found to be in step with the store by a full resync, in milliseconds of `performance.now()`; undefined before the first. */
  readonly resyncedAtMs: number | undefined
  /** How long that took, from its first question to the last instance in the view. */
  readonly resyncTookMs: number
  /** Instances that we hold and the store no longer knows: kept, and worth an operator's look. */
  readonly unconfirmed: number
  /** Ids whose record in the store is faulty now. */
  readonly faulty: number
}

/** Follows a store until stopped. */
export class Sync {
  readonly #parts: SyncParts
  readonly #batchSize: number
  /** Ids that unknown peers led to, and who waits for each. */
  readonly #lookUps = new Map<string, PromiseWithResolvers<void>>()
  /** Ids that notices named. */
  readonly #dirty = new Set<string>()
  /** What the resync under way still has to read; undefined when none is. */
  #stale: Set<string> | undefined
  /** What the index names, as the last resync read it. */
  #named: ReadonlyMap<string, string> = new Map()
  /** Id -> digest of what was read last, for ids that the index names although they run elsewhere: unchanged needs no second reading. */
  readonly #elsewhere = new Map<string, string>()
  readonly #health: RecordHealth
  /** What the loop may do in a turn of the event loop. */
  readonly #budget = new TurnBudget()
  #connected = false
  /** Why the store cannot be used since it was lost; undefined when it was not tried yet. */
  #lossReason: string | undefined
  #wasConnected = false
  #changedAtMs = performance.now()
  #resyncWanted = false
  /** The store had nothing of this region when it was last asked. */
  #isUninitialised = false
  #working = false
  #stopped = false
  #resyncedAtMs: number | undefined
  #resyncBeganAtMs = 0
  #resyncTookMs = 0
  readonly #timers = new Set<NodeJS.Timeout>()

  constructor(parts: SyncParts) {
    this.#parts = parts
    this.#batchSize = Math.max(SMALL_BATCH, Math.min(BATCH, Math.floor(BATCH_BYTES / parts.userDataMaxBytes)))
    this.#health = new RecordHealth(parts.view, parts.metrics.recordFaults, parts.log)
  }

  start(): void {
    const { source, metrics } = this.#parts
    source.start({
      notice: (id) => {
        metrics.notices.inc()
        this.#dirty.add(id)
        this.#resyncWanted ||= this.#isUninitialised
        void this.#work()
      },
      connected: () => {
        this.#health.connected(source.description)
        this.#connected = this.#wasConnected = true
        this.#lossReason = undefined
        this.#changedAtMs = performance.now()
        void this.#work()
        const jitter = this.#resyncedAtMs === undefined ? 0 : Math.random() * RESYNC_JITTER_MS
        this.#later(jitter, () => { this.resync() })
      },
      disconnected: (reason) => {
        this.#health.lost(source.description, reason, this.#connected)
        if (this.#connected) this.#changedAtMs = performance.now()
        this.#connected = false
        this.#lossReason = reason
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
    void this.#work()
  }

  /** Reads the instance that owns an address into the view, if its record names this hypervisor. Rejects when the store does not answer. */
  async lookUp(network: string, address: string): Promise<void> {
    const id = await this.#parts.source.owner(network, address)
    if (id === null) return
    const waiting: PromiseWithResolvers<void> = this.#lookUps.get(id) ?? Promise.withResolvers()
    this.#lookUps.set(id, waiting)
    void this.#work()
    await waiting.promise
  }

  /** What is wrong with the record of an id, as it was read last. */
  faultOf(id: string): AssemblyFault | undefined {
    return this.#health.faultOf(id)
  }

  status(): SyncStatus {
    const problem = this.#problem()
    return {
      connected: this.#connected, wasConnected: this.#wasConnected, changedAtMs: this.#changedAtMs, lossReason: this.#lossReason,
      ready: problem === null, problem, isStoreUnusable: this.#health.problem !== undefined,
      resyncedAtMs: this.#resyncedAtMs, resyncTookMs: this.#resyncTookMs, unconfirmed: this.#health.unconfirmed, faulty: this.#health.faulty,
    }
  }

  #problem(): string | null {
    if (this.#health.problem !== undefined) return formatStoreProblem(this.#health.problem)
    if (this.#resyncedAtMs !== undefined) return null
    if (!this.#connected) return `${this.#wasConnected ? 'the store was lost before the first resync' : 'the store was not reached yet'}: ${this.#lossReason ?? 'connecting'}`
    if (!this.#isUninitialised) return 'the first resync is not complete'
    return 'the store holds nothing of this region: is it the right one (IMDS_STORE, IMDS_REGION), or was it emptied?'
  }

  /** The loop: reads while there is something to read and a store to ask. Does nothing where it runs already. */
  async #work(): Promise<void> {
    if (this.#working) return
    this.#working = true
    while (this.#hasWork()) {
      try {
        await this.#readBatch()
        if (this.#stale?.size === 0) this.#completeResync()
        if (this.#resyncWanted && this.#stale === undefined) await this.#beginResync()
      } catch (error) {
        if (this.#stopped || !this.#connected) break // the loss of the store is reported as such; what is left to read waits for its return
        this.#parts.metrics.resyncs.inc({ result: 'failed' })
        this.#parts.log.warn({ err: error }, 'reading the store failed: trying again')
        await new Promise<void>((resolve) => { this.#later(RETRY_MS * (1 + Math.random()), resolve) })
      }
    }
    this.#working = false // in the same turn as the last look for work: what comes later starts the loop anew
  }

  #hasWork(): boolean {
    return !this.#stopped && this.#connected && (this.#resyncWanted || this.#stale !== undefined || this.#dirty.size > 0 || this.#lookUps.size > 0)
  }

  async #beginResync(): Promise<void> {
    const { source, view, metrics } = this.#parts
    const beganAtMs = performance.now()
    this.#resyncWanted = false
    const { initialised, digests } = await source.index().catch((error: unknown) => {
      this.#resyncWanted = true
      throw error
    })
    this.#isUninitialised = !initialised
    if (!initialised) {
      metrics.resyncs.inc({ result: 'uninitialised' })
      this.#health.allAbsent(source.description)
      return
    }
    this.#health.initialised()
    this.#resyncBeganAtMs = beganAtMs
    this.#stale = new Set()
    this.#named = digests
    for (const [id, digest] of digests) {
      await this.#budget.spend(0)
      const isKnown = (view.get(id)?.digest ?? this.#elsewhere.get(id)) === digest
      if (isKnown) this.#health.present(id)
      if (!isKnown || this.#health.faultOf(id) !== undefined) this.#stale.add(id)
    }
    for (const id of view.ids()) if (!digests.has(id)) this.#stale.add(id)
    this.#health.keepFaultsOf(digests)
    for (const id of this.#elsewhere.keys()) {
      if (!digests.has(id)) this.#elsewhere.delete(id)
    }
  }

  #completeResync(): void {
    const { view, metrics, log, confirmed } = this.#parts
    this.#stale = undefined
    this.#health.resynced(this.#named.keys())
    this.#resyncTookMs = performance.now() - this.#resyncBeganAtMs
    metrics.resyncs.inc({ result: 'completed' })
    if (this.#health.problem !== undefined) return
    if (this.#resyncedAtMs === undefined) log.info({ instances: view.size, faulty: this.#health.faulty }, 'first resync completed: ready')
    this.#resyncedAtMs = performance.now()
    confirmed()
  }

  async #readBatch(): Promise<void> {
    const { batch, waiting } = this.#take()
    if (batch.size === 0) return
    try {
      for await (const loaded of this.#parts.source.load([...batch.keys()])) {
        if (this.#stopped) throw new Error('stopping')
        this.#applySafely(loaded, batch.get(loaded.id)!)
        batch.delete(loaded.id)
        waiting.get(loaded.id)?.resolve()
        await this.#budget.spend(0)
      }
    } catch (error) {
      for (const [id, origin] of batch) {
        if (origin === 'index') this.#stale?.add(id)
        else if (origin === 'notice') this.#dirty.add(id)
      }
      for (const { reject } of waiting.values()) reject(error)
      throw error
    }
    this.#health.contested()
  }

  /** Takes ids out of what is to be read, one of each kind in turn: the next batch with the strongest reason for each id, and who waits for it. */
  #take(): { batch: Map<string, Origin>, waiting: ReadonlyMap<string, PromiseWithResolvers<void>> } {
    const batch = new Map<string, Origin>()
    const waiting = new Map<string, PromiseWithResolvers<void>>()
    const kinds = [this.#lookUps.keys(), this.#dirty.values(), (this.#stale ?? []).values()]
    for (let n = 0, ended = 0; batch.size < this.#batchSize && ended < kinds.length; n++) {
      const { value: id, done } = kinds[n % kinds.length]!.next()
      ended = done === true ? ended + 1 : 0
      if (id === undefined) continue
      const lookUp = this.#lookUps.get(id)
      if (lookUp !== undefined) waiting.set(id, lookUp)
      this.#lookUps.delete(id)
      const isNoticed = this.#dirty.delete(id)
      batch.set(id, this.#stale?.delete(id) === true ? 'index' : isNoticed ? 'notice' : 'peer')
    }
    return { batch, waiting }
  }

  /** A record that meets a bug of ours costs one instance, not the host's following of the store. */
  #applySafely(loaded: Loaded, origin: Origin): void {
    try {
      this.#apply(loaded, origin)
    } catch (error) {
      this.#parts.log.error({ err: error, instance: loaded.id }, 'a record could not be processed')
      this.#health.fault(loaded.id, 'digest' in loaded ? loaded.digest : '', { reason: 'record', faults: [{ path: '', message: 'could not be processed' }] })
    }
  }

  #apply(loaded: Loaded, origin: Origin): void {
    const { id } = loaded
    const planned = plan(loaded, this.#parts.view.get(id), origin, this.#parts)
    if (planned.kind === 'ignore') return
    if (planned.kind === 'keep-absent') {
      this.#health.absent(id)
      return
    }
    this.#health.present(id)
    if (planned.kind === 'fault') {
      this.#health.fault(id, planned.digest, planned.fault)
      return
    }
    this.#health.good(id)
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
