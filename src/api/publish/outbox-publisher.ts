/**
 * Publishes the servers of the outbox (database/outbox.ts), in the order of turns.ts.
 *
 * For each server: take its lock, compose the current record, publish it through the store, and delete its rows of the
 * outbox. Two processes never publish one server at the same time, because the lock is PostgreSQL's. A kill between the
 * store and the database leaves the rows: the record is published again, unchanged.
 *
 *   published, unchanged   the server is `active` (or, removed from the store, `deleted`)
 *   stale                  the store has a higher revision than the database: a restored backup, or a seal by imdsctl.
 *                          Publish above it.
 *   taken                  the store has another server with this id (claim.ts), whose record stays as it is
 *   taken, invalid, address-owned, failed
 *                          only this server waits; its row keeps the fault. Try again every FAULT_RETRY_MS and at its
 *                          next change.
 *   an unreachable store   all servers wait. Retry with back-off, without end.
 */
import { sql, type Kysely } from 'kysely'
import type pg from 'pg'
import type { Logger } from 'pino'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  StoreUnavailable,
  type Publisher,
  type PutRefusal,
  type PutResult,
  type RemoveResult,
} from '../../store/publisher.ts'
import { cancelActions } from '../changes/actions.ts'
import { finishPublish, setPublishFault } from '../changes/servers.ts'
import { NotificationListener } from '../database/notifications.ts'
import { OUTBOX_CHANNEL } from '../database/outbox.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import { findOtherAccount, findTaken, formatTaken, TAKEN, type Taken } from './claim.ts'
import { compose, type Composed } from './compose.ts'
import { Turns } from './turns.ts'

/** What the publisher needs. `connect` returns a new, open connection, for notifications. */
export interface OutboxPublisherParts {
  readonly db: Kysely<Tables>
  readonly connect: () => Promise<pg.Client>
  readonly store: Pick<Publisher, 'initialise' | 'get' | 'put' | 'remove'>
  readonly counted: (result: PublishOutcome) => void
  readonly log: Logger
}

/** How a publish ended, for metrics. */
export type PublishOutcome =
  'published' | 'unchanged' | 'removed' | 'stale' | 'taken' | 'invalid' | 'address-owned' | 'failed'

/**
 * How the publish of a server ended. `claimed`: its id is its own once the transaction is committed. `refused`: why the
 * store refuses it.
 */
type Ended = { readonly kind: 'done' | 'claimed' } | { readonly kind: 'refused'; readonly fault: string }
const DONE: Ended = { kind: 'done' }

/** Servers that are published at the same time. */
const WORKERS = 4
/**
 * The first number of our advisory locks; the second is a hash of the server's id. Two ids with the same hash only
 * delay each other.
 */
const LOCK_CLASS = 8_170
/** How often the outbox is read without a notification, which may be lost. */
const POLL_MS = 1_000
const FAULT_RETRY_MS = 60_000
/**
 * PostgreSQL's codes for an error of the rows themselves: data exceptions, violated constraints, and statements that do
 * not fit the tables.
 */
const FAULT_OF_ROWS = /^(22|23|42)/
const FIRST_BACKOFF_MS = 100
/** The longest pause before the store is tried again. */
export const LONGEST_BACKOFF_MS = 10_000
const STOP_TIMEOUT_MS = 1_000

/** One publisher of a process. */
export class OutboxPublisher {
  readonly #parts: OutboxPublisherParts
  readonly #turns: Turns
  readonly #stopping = new AbortController()
  /** Wakes the publisher. While it has no connection, the poll finds the changes. */
  readonly #listener: NotificationListener
  #isInitialised = false
  #wake: () => void = () => {
    /* nobody waits */
  }
  #isWoken = false
  #running: Promise<unknown> = Promise.resolve()
  /** The last reason for which the store or the database could not be used; undefined: they can. */
  #problem: string | undefined
  #backoffMs = FIRST_BACKOFF_MS

  constructor(parts: OutboxPublisherParts) {
    this.#parts = parts
    this.#turns = new Turns(parts.db)
    this.#listener = new NotificationListener(parts.connect, OUTBOX_CHANNEL, () => {
      this.#signal()
    })
  }

  /** Why nothing can be published now; undefined: it can. */
  get problem(): string | undefined {
    return this.#problem
  }

  start(): void {
    this.#running = Promise.all([this.#run(), this.#listener.run()])
  }

  /** Waits for the publishes in flight, at most STOP_TIMEOUT_MS: the next start repeats those that have not ended. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#signal()
    await this.#listener.stop()
    await Promise.race([this.#running, sleep(STOP_TIMEOUT_MS, undefined, { ref: false })])
  }

  async #run(): Promise<void> {
    while (!this.#hasToStop()) {
      try {
        if (!this.#isInitialised) await this.#parts.store.initialise() // an empty store becomes one that daemons accept
        this.#isInitialised = true
        await this.#publishWaiting()
        this.#reportRecovery()
        await this.#wait(POLL_MS)
      } catch (error) {
        if (this.#hasToStop()) return
        this.#parts.counted('failed')
        const { message } = error as Error
        if (message !== this.#problem)
          this.#parts.log.warn(
            { reason: message },
            'servers cannot be published: guests see the last published state. Retrying',
          )
        this.#problem = message
        await this.#sleep(this.#backoffMs)
        this.#backoffMs = Math.min(LONGEST_BACKOFF_MS, this.#backoffMs * 2)
      }
    }
  }

  #reportRecovery(): void {
    if (this.#problem !== undefined) this.#parts.log.info('publishing works again')
    this.#problem = undefined
    this.#backoffMs = FIRST_BACKOFF_MS
  }

  /**
   * Publishes until no server waits that another process does not publish. Rejects if the store or the database cannot
   * be used. In both cases nothing is in flight any more.
   */
  async #publishWaiting(): Promise<void> {
    const inFlight = new Map<string, Promise<void>>()
    const skipped = new Set<string>() // other processes publish them
    const failures: unknown[] = []
    const publish = async (id: string) => {
      try {
        if (await this.#publishIfFree(id)) this.#reportRecovery()
        else skipped.add(id)
      } catch (error) {
        failures.push(error)
      }
      inFlight.delete(id)
      this.#wake()
    }
    let checkAtMs = 0
    try {
      while (failures.length === 0 && !this.#hasToStop()) {
        this.#isWoken = false
        if (performance.now() >= checkAtMs) {
          checkAtMs = performance.now() + POLL_MS
          skipped.clear()
          await this.#turns.admitRetries()
        }
        const running = inFlight.size
        const id = running < WORKERS ? await this.#turns.next([...inFlight.keys(), ...skipped]) : undefined
        if (id !== undefined) inFlight.set(id, publish(id))
        else if (running === 0) break
        else if (inFlight.size === running) await this.#wait(POLL_MS) // none has ended meanwhile
      }
    } finally {
      await Promise.all(inFlight.values())
    }
    if (failures.length > 0) throw failures[0]
  }

  /**
   * Publishes a server, unless another process is publishing it. The lock is an advisory one: a lock of rows would make
   * changes of this server wait for the store. An error of the server's rows stops only this server.
   */
  async #publishIfFree(id: string): Promise<boolean> {
    const { db, counted, log } = this.#parts
    try {
      for (;;) {
        const done = await db.transaction().execute(async (tx) => {
          // The commit is not flushed to disk: if it is lost, the server is published again, unchanged.
          const {
            rows: [lock],
          } = await sql<{ taken: boolean }>`
            select pg_try_advisory_xact_lock(${LOCK_CLASS}, hashtext(${id})) as taken,
              set_config('synchronous_commit', 'off', true)`.execute(tx)
          return lock?.taken === true && (await this.#publishRows(tx, id))
        })
        if (done !== 'claimed') return done
      }
    } catch (error) {
      if (!FAULT_OF_ROWS.test((error as { code?: string }).code ?? '')) throw error
      counted('failed')
      log.error(
        { server: id, err: error },
        'the rows of this server are faulty: it is not published. Retrying every minute',
      )
      await db.transaction().execute((tx) => postpone(tx, id, (error as Error).message))
      return true
    }
  }

  /**
   * Deletes the rows that were there before the record was composed, and no others: a change that commits later has to
   * be published too. `claimed`: only the id was claimed, and the server can be published once that is committed.
   */
  async #publishRows(tx: Tx, id: string): Promise<boolean | 'claimed'> {
    const rows = (await tx.selectFrom('outbox').select('id').where('server_id', '=', id).orderBy('id').execute()).map(
      (row) => row.id,
    )
    if (rows.length === 0) return false
    const ended = await this.#publish(tx, id)
    if (ended.kind === 'claimed') return 'claimed'
    const done = ended.kind === 'done' ? rows : rows.slice(0, -1)
    if (done.length > 0) await sql`delete from outbox where id = any(${done})`.execute(tx)
    if (ended.kind === 'refused') await postpone(tx, id, ended.fault, rows.at(-1))
    return true
  }

  /** Publishes a server as it is now. */
  async #publish(tx: Tx, id: string): Promise<Ended> {
    const { counted, log, store } = this.#parts
    for (;;) {
      const composed = await compose(tx, id)
      if (composed === undefined || composed.status === 'deleted') return DONE
      if (!composed.isPublished) return this.#claim(tx, id, composed)
      const result = await this.#failedAsResult(() => write(store, id, composed))
      switch (result.kind) {
        case 'published':
        case 'unchanged':
        case 'removed':
        case 'absent':
          counted(result.kind === 'absent' ? 'removed' : result.kind)
          await finishPublish(tx, id, composed)
          return DONE
        case 'stale': {
          const other = await this.#failedAsResult(() => findOtherAccount(store, id, composed))
          if (other !== undefined) return this.#logRefusal(id, composed, other)
          counted('stale')
          log.warn(
            { server: id, revision: composed.revision, inStore: result.revision },
            'the store has a higher revision of this server: publishing above it',
          )
          await tx
            .updateTable('servers')
            .set({ revision: result.revision + 1 })
            .where('id', '=', id)
            .where('revision', '<=', result.revision)
            .execute()
          break
        }
        default:
          return this.#logRefusal(id, composed, result)
      }
    }
  }

  /** The first step of a server that was never published. */
  async #claim(tx: Tx, id: string, composed: Composed): Promise<Ended> {
    const { counted, store } = this.#parts
    const isTaken = composed.fault?.startsWith(TAKEN) === true
    if (composed.status === 'deleting' && (!composed.awaitsCompute || (isTaken && (await cancelActions(tx, id))))) {
      counted('removed') // the store has nothing of it
      await finishPublish(tx, id, { ...composed, awaitsCompute: false })
      return DONE
    }
    const other = await this.#failedAsResult(() => findTaken(store, id, composed))
    if (other !== undefined) return this.#logRefusal(id, composed, other)
    await sql`select set_config('synchronous_commit', 'on', true)`.execute(tx)
    await tx.insertInto('published_ids').values({ id }).execute()
    return { kind: 'claimed' }
  }

  /** Logs a refusal once. */
  #logRefusal(id: string, { fault: known }: Composed, refusal: Refused): Ended {
    const { counted, log } = this.#parts
    counted(refusal.kind)
    const fault = formatFault(refusal)
    if (fault !== known)
      log.error(
        { server: id, fault },
        'the store refuses the record of this server; its guest sees the last published state. Retrying every minute',
      )
    return { kind: 'refused', fault }
  }

  /** An error of the store that concerns only one server becomes a result. */
  async #failedAsResult<T>(task: () => Promise<T>): Promise<T | Failed> {
    try {
      return await task()
    } catch (error) {
      // a stop closes the store, which is no fault of this server
      if (error instanceof StoreUnavailable || this.#hasToStop()) throw error
      return { kind: 'failed', reason: (error as Error).message }
    }
  }

  /** A method, because TypeScript does not see that `stop` changes the field meanwhile. */
  #hasToStop(): boolean {
    return this.#stopping.signal.aborted
  }

  /** Ends early at `stop`. */
  async #sleep(timeoutMs: number): Promise<void> {
    await sleep(timeoutMs, undefined, { signal: this.#stopping.signal }).catch(() => {
      /* stopped */
    })
  }

  #signal(): void {
    this.#isWoken = true
    this.#wake()
  }

  async #wait(timeoutMs: number): Promise<void> {
    if (this.#isWoken || this.#hasToStop()) return
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, timeoutMs)
      this.#wake = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }
}

/**
 * Keeps a fault with its server, and tries the server again later. `row`: the row of the outbox that is tried again;
 * default: all rows of the server.
 */
async function postpone(tx: Tx, id: string, fault: string, row?: number): Promise<void> {
  await setPublishFault(tx, id, fault)
  await tx
    .updateTable('outbox')
    .set({ retry_at: new Date(Date.now() + FAULT_RETRY_MS) })
    .where('server_id', '=', id)
    .$if(row !== undefined, (rows) => rows.where('id', '=', row!))
    .execute()
}

function write(
  store: Pick<Publisher, 'put' | 'remove'>,
  id: string,
  { status, awaitsCompute, revision, record, userData }: Composed,
): Promise<PutResult | RemoveResult> {
  return status === 'deleting' && !awaitsCompute ? store.remove(id, revision) : store.put(record, userData ?? 'none')
}

interface Failed {
  readonly kind: 'failed'
  readonly reason: string
}
/** Why a server is not published. */
type Refused = Exclude<PutRefusal, { kind: 'stale' }> | Failed | Taken

function formatFault(refusal: Refused): string {
  if (refusal.kind === 'failed') return refusal.reason
  if (refusal.kind === 'taken') return formatTaken(refusal)
  return refusal.kind === 'invalid'
    ? `invalid: ${refusal.faults.map(({ path, message }) => `${path} ${message}`).join('; ')}`
    : `address-owned: ${refusal.address} of the network ${refusal.network} belongs to ${refusal.owner}`
}
