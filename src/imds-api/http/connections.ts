/**
 * Bounds the connections of a listener, so that they use up no file descriptors and no memory, and no address keeps
 * others out.
 *
 * A connection waits for its peer while its request has not arrived whole, or a response is being sent. Beyond a bound,
 * a new connection is accepted, and a waiting one is closed in its place: of the same address, the one that has waited
 * longest; of all, first those by which no access token has come, then those of the account with the most. So idle
 * connections never keep out a client that sends a request. If imds-api works on a request of each connection, the new
 * one is reset.
 *
 * One request of a connection is in work. Those behind it (pipelining) wait, and nothing more is read until they are
 * answered; 16 at most, then the connection ends. A response that its peer does not read in time ends its connection,
 * and so do those of the address with the most unread bytes while all together have too many. Node itself ends
 * connections whose request does not arrive in time.
 */
import type { FastifyInstance } from 'fastify'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Log } from '../../runtime/log-codes.ts'
import { ByOwner } from '../../limits/by-owner.ts'
import { canonicalAddress, sourceOf, buildNetworkTest } from '../../metadata/address.ts'

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
/** The most requests of a connection whose responses are not sent: one in work, and those behind it. */
const MAX_REQUESTS = 16
/** The shortest time between two warnings, in ms. */
const WARN_INTERVAL_MS = 60_000

interface Connection {
  readonly socket: Socket
  /** Undefined: without a bound of its own. */
  readonly address: string | undefined
  /** The account or user whose access token came by it. Undefined: none has. */
  owner: string | undefined
  /** When it was opened, or its last request began. */
  sinceMs: number
  /** Begin the requests behind the one in work. */
  readonly behind: (() => void)[]
  /** It had too many requests, and gets no more. */
  isOver: boolean
  isWorking: boolean
  /** The request in work, or the last one. */
  last: { readonly request: IncomingMessage; readonly response: ServerResponse } | undefined
  /** The first check that found the response in part or unread, and what was written by then. */
  unread: { readonly sinceMs: number; readonly bytesBefore: number } | undefined
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
    const handlers = server.server.listeners('request') as RequestListener[]
    server.server.removeAllListeners('request')
    server.server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      this.#receive(request, response, () => {
        for (const handle of handlers) handle(request, response)
      })
    })
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
      const { last, unread } = connection
      // a stream of events that has been read has no unread bytes
      if (last?.response.headersSent !== true || last.response.writableFinished || unreadBytes(connection) === 0) {
        connection.unread = undefined
        continue
      }
      // what the system has taken before may be unread in its buffers; it takes more only as the peer reads
      const taken = takenBytes(connection.socket, last.request.socket)
      if (unread === undefined) connection.unread = { sinceMs: now, bytesBefore: taken }
      else if (now - unread.sinceMs > UNREAD_TIMEOUT_MS + (taken - unread.bytesBefore) / BYTES_PER_MS)
        this.#close(connection, 'unread')
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
      .filter(({ unread }) => (unread?.sinceMs ?? now) < now)
      .map((connection) => ({ connection, bytes: unreadBytes(connection) }))
    const addresses = [...Map.groupBy(unread, ({ connection }) => connection.address).values()].map((ofAddress) => ({
      oldestFirst: ofAddress.sort((a, b) => a.connection.unread!.sinceMs - b.connection.unread!.sinceMs),
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
      owner: undefined,
      sinceMs: now(),
      behind: [],
      isOver: false,
      isWorking: false,
      last: undefined,
      unread: undefined,
    }
    const closed =
      reason === undefined
        ? undefined
        : (longestWaiting(reason === 'address' ? this.#open.of(address!) : mostDispensable(this.#open.all())) ??
          connection)
    socket[CONNECTION] = connection
    this.#open.add(address ?? '', connection)
    socket.once('close', () => this.#remove(connection))
    if (closed !== undefined) this.#close(closed, reason!)
  }

  /** Begins a request, or lets it wait behind the one in work. */
  #receive(request: IncomingMessage, response: ServerResponse, begin: () => void): void {
    const { socket } = request
    const connection = connectionOf(socket)
    if (connection === undefined) {
      begin()
      return
    }
    const beginNext = () => {
      connection.isWorking = true
      connection.sinceMs = this.#parts.now()
      connection.last = { request, response }
      connection.unread = undefined
      response.once('close', () => this.#beginNext(connection, socket))
      begin()
    }
    if (!connection.isWorking) {
      beginNext()
      return
    }
    socket.pause()
    if (connection.behind.length < MAX_REQUESTS - 1 && !connection.isOver) {
      connection.behind.push(beginNext)
      return
    }
    response.destroy()
    if (!connection.isOver) this.#parts.onClose('pipelined')
    connection.isOver = true
  }

  #beginNext(connection: Connection, socket: Socket): void {
    connection.isWorking = false
    if (socket.destroyed) return
    const next = connection.behind.shift()
    if (next === undefined && connection.isOver) socket.destroySoon()
    if (connection.behind.length === 0 && !connection.isOver) socket.resume()
    next?.()
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

function connectionOf(socket: Connected): Connection | undefined {
  return socket[CONNECTION] ?? socket._parent?.[CONNECTION]
}

/** Notes that an access token of an account or user has come by a connection. */
export function noteOwner(socket: Socket, owner: string): void {
  const connection = connectionOf(socket)
  if (connection !== undefined) connection.owner = owner
}

/** Those that wait and have no owner, or else those of the owner with the most. */
function mostDispensable(connections: readonly Connection[]): readonly Connection[] {
  const owners = [...Map.groupBy(connections.filter(isWaiting), ({ owner }) => owner)]
  const ownerless = owners.find(([owner]) => owner === undefined)
  return ownerless?.[1] ?? owners.map(([, own]) => own).sort((a, b) => b.length - a.length)[0] ?? []
}

function unreadBytes({ last }: Connection): number {
  return last?.request.socket.writableLength ?? 0
}

/** `_handle` and `_bytesDispatched` are undocumented: the queue of libuv, and what Node has put into it. */
type Written = Socket & { readonly _handle?: { readonly writeQueueSize?: number } | null }
type Dispatched = Socket & { readonly _bytesDispatched?: number }

/** What the system has taken of what was written. `socket`: the connection; `session`: the same, or its TLS session. */
function takenBytes(socket: Written, session: Dispatched): number {
  return (session._bytesDispatched ?? 0) - (socket._handle?.writeQueueSize ?? 0)
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
