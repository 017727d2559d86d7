/**
 * Server-sent events. A notification of the database causes one query for all streams of an account in this process,
 * within the read share of the account. A stream holds no connection to the database and buffers no events for a slow
 * client: they are queried again when it reads. A stream ends when its client reads nothing for a while, when its right
 * ends, or when events after its cursor were deleted. The client can continue from the last id, in any process. One with
 * a filter gets the id of the last event also if that does not pass, so that its cursor gets no older than those of
 * others.
 */
import { Readable } from 'node:stream'
import { setImmediate as nextTurn } from 'node:timers/promises'
import pLimit from 'p-limit'
import { isContiguous, readEvents, type EventRow } from '../changes/events.ts'
import type { Db } from '../database/transaction.ts'
import type { Leave } from '../../limits/fair-queue.ts'
import { Places, type Holder } from '../http/places.ts'
import { CoalescedWork } from '../http/coalesced-work.ts'
import { formatCursor, type Cursor } from '../model/events.ts'
import { refuse } from '../model/refusal.ts'
import { isWanted, representEvent, type EventFilter } from './event-form.ts'

/** Why streams end: by their client, or one of the reasons above, or because the process stops. */
export const STREAM_ENDS = ['client', 'unread', 'right', 'gone', 'stop'] as const
export type StreamEnd = (typeof STREAM_ENDS)[number]

/**
 * The owner of a stream, and the events that it wants. `mayRead`: false once the right to read has ended; rejects if the
 * database does not answer. `enterShare`: waits for a turn among the reads of the account.
 */
export interface Subscriber extends Holder {
  readonly filter: EventFilter
  readonly mayRead: () => Promise<boolean>
  readonly enterShare: () => Promise<Leave>
}

/** `now`: milliseconds of a monotonic clock. `onEnd` counts. */
export interface EventStreamsParts {
  readonly db: Db
  readonly now: () => number
  readonly onEnd: (reason: StreamEnd) => void
}

/** The most streams of an account, and of one of its clients, in a process. */
export const STREAMS_OF_ACCOUNT = 128
export const STREAMS_OF_CLIENT = 64
/** Most browsers and proxies end a connection on which nothing arrives for 30 s or longer. */
const HEARTBEAT_MS = 15_000
/** A client may take this long to read what was sent. */
const UNREAD_MS = 20_000
/** How long the check of a right is valid while events are sent. */
const RIGHT_CHECK_MS = 1_000
const EVENT_BATCH = 256
/** Queries for streams that run at once, since others share their connections. */
const QUERIES_AT_ONCE = 2
const HEARTBEAT = ': \n\n'
const TOO_MANY = refuse(
  'too_many_requests',
  `the account may have ${STREAMS_OF_ACCOUNT} streams of events, and each of its clients ` +
    `${STREAMS_OF_CLIENT}: close one first`,
)

export class EventStreams {
  readonly #parts: EventStreamsParts
  readonly #places: Places<EventStream, StreamEnd>
  /** Sends what is new to the streams of an account. */
  readonly #sending = new CoalescedWork<string>((accountId) => this.#sendSome(accountId))
  readonly #queries = pLimit(QUERIES_AT_ONCE)
  readonly #heartbeats: NodeJS.Timeout

  constructor(parts: EventStreamsParts) {
    this.#parts = parts
    const { onEnd } = parts
    this.#places = new Places({ ofAccount: STREAMS_OF_ACCOUNT, ofClient: STREAMS_OF_CLIENT, beyond: TOO_MANY, onEnd })
    this.#heartbeats = setInterval(() => void this.heartbeat(), HEARTBEAT_MS).unref()
  }

  get count(): number {
    return this.#places.ofAccount.size
  }

  /** Opens a stream of the events after a cursor. Refused (429) if the account or the client has too many. */
  open(subscriber: Subscriber, after: Cursor): Readable {
    const { accountId } = subscriber
    const stream: EventStream = new EventStream(subscriber, after, this.#parts.now, () => {
      void this.#sending.run(accountId)
    })
    const leave = this.#places.take(subscriber, stream)
    stream.once('close', () => leave(stream.reason ?? 'client'))
    return stream
  }

  /** There may be new events of an account; an empty name: of any. */
  wake(accountId: string): void {
    for (const one of accountId === '' ? this.#places.ofAccount.owners : [accountId]) void this.#sending.run(one)
  }

  close(): void {
    this.#places.close()
    clearInterval(this.#heartbeats)
    for (const stream of this.#places.ofAccount.all()) stream.finish('stop')
  }

  /** Sends heartbeats, and ends the streams that have to end. */
  async heartbeat(): Promise<void> {
    for (const stream of this.#places.ofAccount.all()) {
      await stream.check(0).catch(() => undefined)
      stream.heartbeat()
    }
  }

  /** True: there may be more. */
  async #sendSome(accountId: string): Promise<boolean> {
    const [first] = this.#readyOf(accountId)
    if (first === undefined) return false
    const leave = await first.subscriber.enterShare()
    return this.#sendInTurn(accountId).finally(leave)
  }

  #readyOf(accountId: string): readonly EventStream[] {
    return this.#places.ofAccount.of(accountId).filter((stream) => stream.isReady)
  }

  async #sendInTurn(accountId: string): Promise<boolean> {
    const ready = this.#readyOf(accountId)
    if (ready.length === 0) return false
    const from = Math.min(...ready.map(({ cursor }) => cursor.number))
    const rows = await this.#queries(() => readEvents(this.#parts.db, accountId, from, EVENT_BATCH))
    const behind = ready.filter(({ cursor }) => cursor.number < (rows.at(-1)?.id ?? 0))
    await Promise.all(behind.map((stream) => stream.check(RIGHT_CHECK_MS)))
    const frames = new Map<string, Buffer>()
    for (const stream of behind) {
      const { filter } = stream.subscriber
      const news = rows.filter(({ id }) => id > stream.cursor.number)
      const key = JSON.stringify([stream.cursor.number, filter])
      if (!frames.has(key)) {
        if (frames.size > 0) await nextTurn() // other requests are served between
        frames.set(key, Buffer.from(framesOf(news, filter)))
      }
      stream.sendEvents(news, frames.get(key)!)
    }
    return rows.length === EVENT_BATCH
  }
}

/** One stream. Node calls `_read` when the client has read what was sent. */
class EventStream extends Readable {
  readonly subscriber: Subscriber
  readonly #now: () => number
  readonly #onReadable: () => void
  /** The last event that was sent. */
  cursor: Cursor
  reason: StreamEnd | undefined
  isReady = false
  #unreadSinceMs: number
  #checkedAtMs: number
  #sentAtMs: number

  constructor(subscriber: Subscriber, cursor: Cursor, now: () => number, onReadable: () => void) {
    super()
    this.subscriber = subscriber
    this.#now = now
    this.#onReadable = onReadable
    this.cursor = cursor
    this.#unreadSinceMs = this.#checkedAtMs = this.#sentAtMs = now()
    this.push(`id: ${formatCursor(cursor)}\n\n`) // no event, but a client that loses the connection now can continue
  }

  override _read(): void {
    if (this.isReady) return
    this.isReady = true
    this.#onReadable()
  }

  /** Ends it if its right has ended. A result counts for `forMs`. */
  async check(forMs: number): Promise<void> {
    if (this.#now() - this.#checkedAtMs < forMs) return
    const mayRead = await this.subscriber.mayRead()
    this.#checkedAtMs = this.#now()
    if (!mayRead) this.finish('right')
  }

  /** Sends events. `frames`: their text. */
  sendEvents(events: readonly EventRow[], frames: Buffer): void {
    if (this.reason !== undefined || this.destroyed) return
    const last = events.at(-1)!
    if (!isContiguous(this.cursor, events)) {
      this.finish('gone')
      return
    }
    this.cursor = { epoch: last.epoch, number: last.id }
    this.#send(frames)
  }

  /** Sends a comment if nothing was sent for a while, and cuts off a client that reads nothing. */
  heartbeat(): void {
    if (this.reason !== undefined || this.destroyed) return
    const now = this.#now()
    if (!this.isReady && now - this.#unreadSinceMs > UNREAD_MS) {
      this.reason = 'unread'
      this.destroy()
    } else if (this.isReady && now - this.#sentAtMs >= HEARTBEAT_MS / 2) this.#send(HEARTBEAT)
  }

  finish(reason: StreamEnd): void {
    if (this.reason !== undefined || this.destroyed) return
    this.reason = reason
    this.push(null)
  }

  #send(text: string | Buffer): void {
    this.isReady = false
    this.#unreadSinceMs = this.#sentAtMs = this.#now()
    this.push(text)
  }
}

/** The events that pass a filter, and the id of the last one. */
function framesOf(rows: readonly EventRow[], filter: EventFilter): string {
  return rows
    .map((row, i) => {
      const id = `id: ${formatCursor({ epoch: row.epoch, number: row.id })}\n`
      if (isWanted(filter, row)) return `${id}data: ${JSON.stringify(representEvent(row))}\n\n`
      return i === rows.length - 1 ? `${id}\n` : ''
    })
    .join('')
}
