/**
 * Keeps the view in step with the store.
 *
 * A notice is a hint; the key is the truth, unless the view has seen a later one (invariant 4): a notice only queues an
 * id, and the record that is then read decides. Every (re)connect and a slow timer start a resync, which compares
 * digests and reads the records that differ.
 * The instance of an unknown peer, whose notice may have been missed, is looked up by the peer's address.
 *
 *     notice ------\                                                            replace -> ChangeLog (on disk) -> view
 *     lookup -------> ReadQueue -> batch -> Source.load -> validate -> plan ->  remove  -> ChangeLog (on disk) -> view
 *     resync ------/      ^                     |                               keep
 *     (index, digests)    +--- not read --------+                               fault, behind -> RecordHealth
 *
 *     store:   connecting -> connected -> lost -> connected ...
 *     resync:  wanted -> index read -> queued ids read -> complete: ready
 *                                                      -> nearly all records faulty: not ready, the view stays
 *                     -> region not initialised: not ready, the view stays
 *
 * One loop reads all records, one batch at a time. So an older state of a record is never applied after a newer one,
 * whichever connections the store's answers use. Each iteration reads one batch, then the index if a resync is due. A
 * batch has up to MAX_BATCH ids (fewer where user-data may be long: #batchSize), and each kind of work has a third of it
 * (ReadQueue). A resync that is requested during another begins when that one is complete. Records that could not be
 * read are read again after 1 to 2 s, so a resync completes even if connections are lost repeatedly.
 *
 * Guests are answered during all of this: the source reads a batch in parts of bounded size, each instance is applied
 * when it is read, and a TurnBudget ends the turn of the event loop after a few milliseconds. Beyond the view, a resync
 * keeps the ids and one such part in memory.
 */
import { TurnBudget } from '../../limits/turn-budget.ts'
import { Applier } from './applier.ts'
import type { ChangeLog } from './change.ts'
import { ReadQueue } from './read-queue.ts'
import { RecordHealth } from './record-health.ts'
import { Resync, type ResyncParts } from './resync.ts'
import { SyncState, type SyncStatus } from './sync-state.ts'

const MAX_BATCH = 100
/**
 * If user-data may be long, a batch has fewer ids (at least MIN_BATCH), so that its user-data has at most about this
 * many bytes.
 */
const MAX_BATCH_BYTES = 64 * 1024 * 1024
const MIN_BATCH = 10
const RETRY_MS = 1000
/**
 * After a reconnect a daemon with a view waits up to this long, so that a thousand hypervisors do not all read from a
 * new primary at once.
 */
const RESYNC_JITTER_MS = 2000

/** What sync needs. `hypervisor`: the name of this one; undefined to serve every instance of the store. */
export interface SyncParts extends Omit<ResyncParts, 'queue' | 'health' | 'state' | 'applier' | 'wall'> {
  readonly changeLog: ChangeLog
  readonly hypervisor: string | undefined
  readonly userDataMaxBytes: number
  readonly resyncMs: number
}

export class Sync {
  readonly #parts: SyncParts
  readonly #batchSize: number
  /** What is wrong with the records, as they were last read. */
  readonly health: RecordHealth
  readonly #queue = new ReadQueue()
  readonly #state: SyncState
  readonly #applier: Applier
  readonly #resync: Resync
  /** Limits what the loop does in one turn of the event loop. */
  readonly #budget = new TurnBudget()
  /** Why the store could not be used since it was lost: each is logged once. */
  readonly #reasons = new Set<string>()
  #resyncWanted = false
  #working = false
  #stopped = false
  readonly #timers = new Set<NodeJS.Timeout>()

  constructor(parts: SyncParts) {
    this.#parts = parts
    this.#batchSize = Math.max(MIN_BATCH, Math.min(MAX_BATCH, Math.floor(MAX_BATCH_BYTES / parts.userDataMaxBytes)))
    this.health = new RecordHealth(parts.view, parts.metrics.recordFaults, parts.log)
    this.#state = new SyncState(this.health)
    const shared = { ...parts, health: this.health, wall: wallClock(parts.view.removals.floor / 1000) }
    this.#applier = new Applier(shared)
    this.#resync = new Resync({ ...shared, queue: this.#queue, state: this.#state, applier: this.#applier })
  }

  start(): void {
    const { source, view, metrics, log, onChange } = this.#parts
    source.noteOrder?.(view.latest)
    source.start({
      notice: (id) => {
        metrics.notices.inc()
        this.#queue.addNoticed(id)
        this.#state.noteLag()
        void this.#work()
      },
      connected: () => {
        log.info({ store: source.description }, 'the store is connected')
        this.#state.noteConnected()
        this.#reasons.clear()
        this.#resync.isFirst = true
        this.#resyncWanted = false // one that was requested during the loss would not wait for the jitter
        void this.#work()
        const jitter = this.#state.wasResynced ? Math.random() * RESYNC_JITTER_MS : 0
        this.#later(jitter, () => this.resync())
      },
      replaced: () => {
        this.#resync.isFirst = true
        this.resync()
      },
      disconnected: (reason) => {
        this.#state.noteDisconnected(reason)
        if (!this.#reasons.has(reason)) log.info({ store: source.description, reason }, 'the store cannot be used')
        this.#reasons.add(reason)
        onChange()
      },
    })
    this.#scheduleResync()
  }

  async stop(): Promise<void> {
    this.#stopped = true
    for (const timer of this.#timers) clearTimeout(timer)
    await this.#parts.source.stop()
  }

  /** Requests a full resync; it begins when the store is connected. */
  resync(): void {
    this.#resyncWanted = true
    void this.#work()
  }

  /**
   * Reads the instance that owns an address into the view, if its record names this hypervisor. Rejects when the store
   * does not answer.
   */
  async lookUp(network: string, address: string): Promise<void> {
    const id = await this.#parts.source.owner(network, address)
    if (id === undefined) return
    const read = this.#queue.addLookUp(id)
    void this.#work()
    await read
  }

  isConnected(): boolean {
    return this.#state.isConnected
  }

  status(): SyncStatus {
    return this.#state.read()
  }

  /**
   * The loop: reads while there is something to read and the store is connected. Returns at once if it runs already.
   */
  async #work(): Promise<void> {
    if (this.#working) return
    this.#working = true
    while (this.#hasWork()) {
      try {
        await this.#readBatch()
        if (this.#queue.isResyncRead) this.#resync.complete()
        if (this.#resyncWanted && !this.#queue.isResyncing) await this.#beginResync()
      } catch (error) {
        if (this.#stopped) break
        if (this.#resyncWanted || this.#queue.isResyncing) this.#parts.metrics.resyncs.inc({ result: 'failed' })
        if (!this.#state.isConnected) break // `disconnected` reports the loss; the queue waits for the store's return
        this.#parts.log.debug({ err: error }, 'reading the store failed: trying again')
        this.#state.noteReadFailure((error as Error).message)
        await new Promise<void>((resolve) => this.#later(RETRY_MS * (1 + Math.random()), resolve))
      }
    }
    this.#working = false // in the same turn as the last #hasWork(), so that later work starts the loop again
    if (this.#queue.isEmpty) this.#state.noteRead(undefined)
    if (this.#queue.isEmpty && this.#state.isConnected) this.#state.noteReadFailure(undefined)
  }

  #hasWork(): boolean {
    return !this.#stopped && this.#state.isConnected && (this.#resyncWanted || !this.#queue.isEmpty)
  }

  async #beginResync(): Promise<void> {
    this.#resyncWanted = false
    await this.#resync.begin().catch((error: unknown) => {
      this.#resyncWanted = true
      throw error
    })
  }

  async #readBatch(): Promise<void> {
    const takenAtMs = performance.now()
    const batch = this.#queue.take(this.#batchSize)
    const isAll = this.#queue.isEmpty
    const { origins, waiting } = batch
    if (origins.size === 0) return
    const { faulty } = this.health
    const { size } = this.#parts.view
    try {
      for await (const loaded of this.#parts.source.load([...origins.keys()])) {
        if (this.#stopped) throw new Error('stopping')
        const { id } = loaded
        const origin = origins.get(id)!
        origins.delete(id)
        await this.#applier.apply(loaded, origin, () => waiting.get(id)?.resolve())
        await this.#budget.spend(0)
      }
    } catch (error) {
      await this.#parts.changeLog.allApplied()
      this.#queue.putBack(batch, error)
      throw error
    }
    await this.#parts.changeLog.allApplied() // the next batch may have newer states of the same ids
    // the region may have got its first record since its index was read
    this.#resyncWanted ||= this.health.isStoreEmpty
    // records are repaired or new: a resync says whether the store can be used again, which the firewall's rules wait for
    const isBetter = this.health.faulty < faulty || this.#parts.view.size > size
    this.#resyncWanted ||= this.health.problem !== undefined && isBetter
    this.#parts.source.noteOrder?.(this.#parts.view.latest)
    if (isAll) this.#state.noteRead(takenAtMs)
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

/**
 * The time of day; not before what had been published at the start, if the clock of this hypervisor is behind. What was
 * published since does not count: a clock that is ahead could go further with each resync.
 */
function wallClock(floorMs: number): () => number {
  const startedAtMs = performance.now()
  return () => Math.max(Date.now(), floorMs + performance.now() - startedAtMs)
}
