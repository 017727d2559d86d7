/**
 * Bounds the connections of a listener, so that they use up no file descriptors and no memory, and no address keeps
 * others out.
 *
 * A connection waits for its peer while its request has not arrived whole, or a response is being sent. Beyond a bound,
 * a new connection is accepted, and the connection that has waited longest is closed in its place: of the same address,
 * or of all. So idle connections never keep out a client that sends a request. If imds-api works on a request of
 * each connection, the new one is reset.
 *
 * A response that its peer does not read in time ends its connection, and so do those of the address with the most
 * unread bytes while all together have too many. Of many requests that do not wait for their responses (pipelining),
 * Node would begin all at once: the first 16 are answered, then the connection ends. Node itself ends connections whose
 * request does not arrive in time.
 */
import type { FastifyInstance } from 'fastify'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Log } from '../../runtime/log-codes.ts'
import { ByOwner } from '../../limits/by-owner.ts'
import { canonicalAddress, sourceOf } from '../../metadata/address.ts'
import { buildNetworkTest } from '../../runtime/networks.ts'

export const CLOSED_REASONS = ['address', 'all', 'unread', 'pipelined'] as const
/**
 * Its address has too many connections, all addresses together have, its peer does not read the response, or it has too
 * many requests.
 */
export type ClosedReason = (typeof CLOSED_REASONS)[number]

/**
 * Dependencies, and the limits. `maxConnections`: those of all addresses. `maxPerAddress`: those of one address (for
 * IPv6 its /64); trusted proxies and unix sockets have no such bound. `now`: milliseconds of a monotonic clock.
 */
export interface ConnectionsParts {
  readonly maxConnections: number
  readonly maxPerAddress: number
  readonly trustedProxies: readonly string[]
  readonly onClose: (reason: ClosedReason) => void
  readonly now: () => number
  readonly log: Pick<Log, 'warn'>
}

const CHECK_INTERVAL_MS = 1_000
/** A peer may take this long to read a response, in ms, and longer if it reads BYTES_PER_MS (32 KiB a second). */
const UNREAD_TIMEOUT_MS = 30_000
const BYTES_PER_MS = 32
/** The most bytes of unread responses. They are in memory. */
const MAX_UNREAD_BYTES = 64 * 2 ** 20
/** The most requests of a connection whose responses are not sent. */
const MAX_REQUESTS = 16
/** The shortest time between two warnings, in ms. */
const WARN_INTERVAL_MS = 60_000

interface Connection {
  readonly socket: Socket
  /** Undefined: without a bound of its own. */
  readonly address: string | undefined
  /** When it was opened, or its last request began. */
  sinceMs: number
  /** Its requests whose responses are not sent. Infinity: it had too many, and gets no more. */
  requests: number
  last:
    | { readonly request: IncomingMessage; readonly response: ServerResponse; readonly bytesBefore: number }
    | undefined
  /** The first check that found the response in part or unread. */
  unreadSinceMs: number | undefined
}
const CONNECTION = Symbol('connection')
/** `_parent` (undocumented): the connection of a TLS socket. */
type Connected = Socket & { [CONNECTION]?: Connection; readonly _parent?: Connected }

/** The open connections of one listener. */
export class ClientConnections {
  readonly #parts: ConnectionsParts
  readonly #isProxy: (address: string) => boolean
  /** By address. */
  readonly #open = new ByOwner<Connection>()
  #warnedAtMs = -Infinity

  constructor(parts: ConnectionsParts) {
    this.#parts = parts
    this.#isProxy = buildNetworkTest(parts.trustedProxies.filter((proxy) => !proxy.startsWith('unix:')))
  }

  /** Begins to bound the connections of a server, until it closes. */
  start(server: Pick<FastifyInstance, 'server' | 'addHook'>): void {
    server.server.on('connection', (socket: Socket) => this.#admit(socket))
    server.server.prependListener('request', (request: IncomingMessage, response: ServerResponse) => {
      this.#begin(request, response)
    }) // before it is handled
    const checks = setInterval(() => this.endUnread(), CHECK_INTERVAL_MS)
    server.addHook('onClose', (_server, done) => {
      clearInterval(checks)
      done()
    })
  }

  /** Ends the connections that wait for their peer, at a stop. */
  endWaiting(): void {
    for (const connection of this.#open.all()) if (isWaiting(connection)) connection.socket.destroy()
  }

  /** Ends the connections whose peer does not read its response in time. */
  endUnread(): void {
    const now = this.#parts.now()
    for (const connection of this.#open.all()) {
      const { last, unreadSinceMs } = connection
      // a stream of events that has been read has no unread bytes
      if (last?.response.headersSent !== true || last.response.writableFinished || unreadBytes(connection) === 0) {
        connection.unreadSinceMs = undefined
      } else if (unreadSinceMs === undefined) {
        connection.unreadSinceMs = now
      } else if (
        now - unreadSinceMs >
        UNREAD_TIMEOUT_MS + (last.request.socket.bytesWritten - last.bytesBefore) / BYTES_PER_MS
      ) {
        this.#close(connection, 'unread')
      }
    }
    this.#endLargestUnread()
  }

  /**
   * While the unread responses have too many bytes, ends the oldest one of the address with the most. One that is
   * younger than a check may be in flight.
   */
  #endLargestUnread(): void {
    const now = this.#parts.now()
    const unread = this.#open
      .all()
      .filter(({ unreadSinceMs = now }) => unreadSinceMs < now)
      .map((connection) => ({ connection, bytes: unreadBytes(connection) }))
    const addresses = [...Map.groupBy(unread, ({ connection }) => connection.address).values()].map((ofAddress) => ({
      oldestFirst: ofAddress.sort((a, b) => a.connection.unreadSinceMs! - b.connection.unreadSinceMs!),
      bytes: sumOf(ofAddress),
    }))
    for (let bytes = sumOf(unread); bytes > MAX_UNREAD_BYTES;) {
      const largest = addresses.reduce((a, b) => (b.bytes > a.bytes ? b : a))
      const { connection, bytes: freed } = largest.oldestFirst.shift()!
      this.#close(connection, 'unread')
      largest.bytes -= freed
      bytes -= freed
    }
  }

  #admit(socket: Connected): void {
    const { maxConnections, maxPerAddress, now } = this.#parts
    const address = this.#addressOf(socket)
    const reason =
      address !== undefined && this.#open.countOf(address) >= maxPerAddress
        ? 'address'
        : this.#open.size >= maxConnections
          ? 'all'
          : undefined
    if (reason === 'all') this.#warn()
    const connection: Connection = {
      socket,
      address,
      sinceMs: now(),
      requests: 0,
      last: undefined,
      unreadSinceMs: undefined,
    }
    const closed =
      reason === undefined
        ? undefined
        : (longestWaiting(reason === 'address' ? this.#open.of(address!) : this.#open.all()) ?? connection)
    socket[CONNECTION] = connection
    this.#open.add(address ?? '', connection)
    socket.once('close', () => this.#remove(connection))
    if (closed !== undefined) this.#close(closed, reason!)
  }

  #begin(request: IncomingMessage, response: ServerResponse): void {
    const socket: Connected = request.socket
    const connection = socket[CONNECTION] ?? socket._parent?.[CONNECTION]
    if (connection === undefined) return
    if (connection.requests >= MAX_REQUESTS) {
      response.destroy() // the server does not begin it
      socket.pause()
      if (connection.requests === Infinity) return
      connection.requests = Infinity
      this.#parts.onClose('pipelined')
      connection.last!.response.once('close', () => socket.destroySoon())
      return
    }
    connection.sinceMs = this.#parts.now()
    connection.last = { request, response, bytesBefore: socket.bytesWritten }
    connection.unreadSinceMs = undefined
    connection.requests++
    response.once('close', () => {
      connection.requests--
    })
  }

  #close(connection: Connection, reason: ClosedReason): void {
    this.#parts.onClose(reason)
    this.#remove(connection) // before its event, since more connections may arrive in this turn
    if (reason === 'unread' && connection.socket.remoteAddress !== undefined) connection.socket.resetAndDestroy() // the system forgets the response too
    else connection.socket.destroy()
  }

  #remove(connection: Connection): void {
    this.#open.remove(connection.address ?? '', connection)
  }

  #addressOf({ remoteAddress }: Socket): string | undefined {
    if (remoteAddress === undefined || this.#isProxy(remoteAddress)) return undefined
    return sourceOf(canonicalAddress(remoteAddress) ?? remoteAddress)
  }

  #warn(): void {
    const { maxConnections, now, log } = this.#parts
    if (now() - this.#warnedAtMs < WARN_INTERVAL_MS) return
    this.#warnedAtMs = now()
    log.warn(
      { code: 'connections-full', connections: maxConnections },
      'all connections are in use: those that have waited longest for their clients are closed; ' +
        'raise LimitNOFILE= if your clients need more',
    )
  }
}

function unreadBytes({ last }: Connection): number {
  return last?.request.socket.writableLength ?? 0
}

function sumOf(unread: readonly { readonly bytes: number }[]): number {
  return unread.reduce((sum, { bytes }) => sum + bytes, 0)
}

/** The connection that has waited longest for its peer. */
function longestWaiting(connections: readonly Connection[]): Connection | undefined {
  let longest: Connection | undefined
  for (const connection of connections)
    if (isWaiting(connection) && connection.sinceMs < (longest?.sinceMs ?? Infinity)) longest = connection
  return longest
}

/** False while imds-api works on a request: it has arrived whole, and its response has not begun. */
function isWaiting({ last }: Connection): boolean {
  if (last?.request.complete !== true) return true
  const { response }: { response: Waiting } = last
  return response.headersSent || response.destroyed || response[IDLE] === true
}

const IDLE = Symbol('idle')
type Waiting = ServerResponse & { [IDLE]?: boolean }

/** Marks a request that waits for a change: its connection may be closed to make room for a new one. */
export function markIdle(response: ServerResponse): void {
  ;(response as Waiting)[IDLE] = true
}

/**
 * File descriptors for other purposes: connections to the database and the store, listeners, files. An idle imds-api
 * has about 170 open.
 */
const RESERVED_DESCRIPTORS = 192
/**
 * The most connections of a listener for clients, or for hypervisors, if there are descriptors enough; and of that for
 * operators.
 */
const [MAX_CLIENT_CONNECTIONS, MAX_OPERATOR_CONNECTIONS] = [4_096, 64]

/**
 * How many connections each listener may have, given the number of file descriptors. The listeners cannot use up each
 * other's.
 */
export function shareConnections(descriptors: number): {
  readonly clients: number
  readonly hypervisors: number
  readonly operators: number
} {
  const left = Math.max(descriptors - RESERVED_DESCRIPTORS, descriptors / 4)
  const part = (share: number, most: number) => Math.max(1, Math.min(most, Math.floor(left * share)))
  return {
    clients: part(5 / 8, MAX_CLIENT_CONNECTIONS),
    hypervisors: part(2 / 8, MAX_CLIENT_CONNECTIONS),
    operators: part(1 / 8, MAX_OPERATOR_CONNECTIONS),
  }
}

/**
 * How many of a listener's connections one address may have, given the setting: at most half, so that no address keeps
 * others out.
 */
export function shareOfAddress(setting: number, most: number): number {
  return Math.max(1, Math.min(setting, Math.floor(most / 2)))
}
