/**
 * Publishes the servers of the outbox (database/outbox.ts), in batches (batch.ts), in the order of turns.ts.
 *
 * While the store or the database cannot be used, all servers wait. Retry with back-off, without end.
 */
import type pg from 'pg'
import { setTimeout as sleep } from 'node:timers/promises'
import { waitAtMost } from '../../limits/in-time.ts'
import { Waiter } from '../../limits/waiter.ts'
import type { PeriodicTask } from '../../runtime/periodic-task.ts'
import { buildListener } from '../database/notifications.ts'
import { OUTBOX_CHANNEL } from '../database/outbox.ts'
import { findDatabaseTrouble, type DatabaseReport } from '../http/database-errors.ts'
import { publishBatch, type BatchParts } from './batch.ts'
import type { OwnStore } from './region-database.ts'
import { PublishTurns, type PublishBatch } from './turns.ts'

/**
 * Dependencies of the publisher. `connect` returns a new, open connection, for notifications. `openStore` is called
 * every second, and enqueues what the store has lost (region-database.ts). `batchSize`: the most servers of a batch.
 * `countBatch` is called for each batch.
 */
export interface OutboxPublisherParts extends Omit<BatchParts, 'hasToStop' | keyof OwnStore> {
  readonly connect: () => Promise<pg.Client>
  readonly openStore: () => Promise<OwnStore<BatchParts['store']>>
  readonly batchSize: number
  readonly countBatch: () => void
  readonly databaseReport: Pick<DatabaseReport, 'report'>
}

/** Why nothing can be published. `isDatabaseAway`: another condition has it. */
export interface PublishProblem {
  readonly reason: string
  readonly isDatabaseAway: boolean
}

/** The most servers of a batch in operation. Larger batches are hardly faster, and need more memory. */
export const MAX_BATCH_SERVERS = 50
/** Batches that are published at the same time. */
const WORKERS = 4
/** How many of them may be changes of many servers, so that an urgent one does not wait until such a batch ends. */
const MASS_WORKERS = 2
/** How often the outbox is read without a notification, which may be lost. */
const POLL_MS = 1_000
const FIRST_BACKOFF_MS = 100
/** The longest pause before the store is tried again. */
export const MAX_BACKOFF_MS = 10_000
const STOP_TIMEOUT_MS = 1_000

export class OutboxPublisher {
  readonly #parts: OutboxPublisherParts
  readonly #turns: PublishTurns
  readonly #stopping = new AbortController()
  /** Wakes the publisher. While it has no connection, the poll finds the changes. */
  readonly #listener: PeriodicTask
  readonly #waiter = new Waiter()
  #store: OwnStore<BatchParts['store']> | undefined
  #running: Promise<void> = Promise.resolve()
  /** The last reason for which the store or the database could not be used; undefined: they can. */
  #problem: PublishProblem | undefined
  #backoffMs = FIRST_BACKOFF_MS
  /** The next check of the store and of failed publishes: every second, also under constant load. */
  #checkAtMs = 0

  constructor(parts: OutboxPublisherParts) {
    this.#parts = parts
    this.#turns = new PublishTurns(parts.db, parts.batchSize)
    this.#listener = buildListener(parts.connect, OUTBOX_CHANNEL, () => this.#waiter.wake())
  }

  /** Why nothing can be published now; undefined: it can. */
  get problem(): PublishProblem | undefined {
    return this.#problem
  }

  /** The store has lost changes, and everything is being published again. */
  get isStoreBehind(): boolean {
    return this.#store?.isBehind === true
  }

  start(): void {
    this.#listener.start()
    this.#running = this.#run()
  }

  /** Waits for the publishes in flight, at most STOP_TIMEOUT_MS: the next start repeats those that have not ended. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#waiter.wake()
    await waitAtMost(Promise.all([this.#running, this.#listener.stop()]), STOP_TIMEOUT_MS)
  }

  async #run(): Promise<void> {
    while (!this.#hasToStop()) {
      try {
        await this.#publishWaiting()
        this.#noteSuccess()
        if (!this.#hasToStop()) await this.#waiter.wait(POLL_MS)
      } catch (error) {
        if (this.#hasToStop()) return
        this.#parts.count('failed')
        this.#parts.databaseReport.report(error as Error)
        const isDatabaseAway = findDatabaseTrouble(error as Error)?.isAway === true
        this.#problem = { reason: (error as Error).message, isDatabaseAway }
        this.#checkAtMs = 0
        const { signal } = this.#stopping
        await sleep(this.#backoffMs, undefined, { signal }).catch(() => undefined) // stopped
        this.#backoffMs = Math.min(MAX_BACKOFF_MS, this.#backoffMs * 2)
      }
    }
  }

  #noteSuccess(): void {
    this.#problem = undefined
    this.#backoffMs = FIRST_BACKOFF_MS
  }

  /**
   * Publishes until no server waits, except those that other processes are publishing. Rejects if the store or the
   * database cannot be used. In both cases nothing is in flight at its end.
   */
  async #publishWaiting(): Promise<void> {
    const inFlight = new Set<PublishBatch>()
    const running = new Set<Promise<void>>()
    const skipped = new Set<string>() // other processes publish them
    const failures: unknown[] = []
    const publish = async (batch: PublishBatch) => {
      try {
        const parts = { ...this.#parts, ...this.#store!, hasToStop: () => this.#hasToStop() }
        const others = await publishBatch(parts, batch.ids)
        for (const id of others) skipped.add(id)
        if (others.length < batch.ids.length) {
          this.#parts.countBatch()
          this.#noteSuccess()
        }
      } catch (error) {
        failures.push(error)
      }
      inFlight.delete(batch)
      this.#waiter.wake()
    }
    try {
      while (failures.length === 0 && !this.#hasToStop()) {
        if (performance.now() >= this.#checkAtMs) {
          this.#checkAtMs = performance.now() + POLL_MS
          skipped.clear()
          this.#store = await this.#parts.openStore()
          await this.#turns.admitRetries()
        }
        const size = inFlight.size
        const mass = [...inFlight].filter(({ isUrgent }) => !isUrgent).length
        const busy = [...inFlight].flatMap(({ ids }) => ids)
        const batch = size < WORKERS ? await this.#turns.next([...busy, ...skipped], mass >= MASS_WORKERS) : undefined
        if (batch === undefined && size === 0) break
        const hasOneEnded = inFlight.size < size
        if (batch !== undefined) {
          inFlight.add(batch)
          const work = publish(batch).finally(() => running.delete(work))
          running.add(work)
        }
        // An urgent batch that is not full has all urgent changes that waited, and a lookup beside it would slow it down.
        const isWorkLeft = batch !== undefined && (!batch.isUrgent || batch.ids.length === this.#parts.batchSize)
        if (!hasOneEnded && !isWorkLeft) await this.#waiter.wait(POLL_MS)
      }
    } finally {
      await Promise.all(running)
    }
    if (failures.length > 0) throw failures[0]
  }

  /** A method, because TypeScript does not see that `stop` changes the field during an await. */
  #hasToStop(): boolean {
    return this.#stopping.signal.aborted
  }
}
