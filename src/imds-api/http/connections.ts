/**
 * Bounds the connections of a listener, so that they use up no file descriptors and no memory, and no address keeps
 * others out.
 *
 * - An address has a number of connections; further ones are reset.
 * - When all are in use, a new one replaces one by which no access token has come, or else one of the account with the
 *   most.
 * - One request of a connection is in work. Up to 15 wait behind it (pipelining), and nothing more is read until they
 *   are answered. With more, the connection ends after these.
 * - A response of which the peer reads nothing for 30 to 60 s ends. While all unread ones have more than 64 MiB, the oldest of
 *   the account or address with the most ends.
 *
 * Node bounds the time in which a request must arrive, and that of idle connections.
 */
import type { FastifyInstance } from 'fastify'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Log } from '../../runtime/log-codes.ts'
import { ByOwner } from '../../limits/by-owner.ts'
import { buildEachMinute } from '../../limits/each-minute.ts'
import { canonicalAddress, sourceOf, buildNetworkTest } from '../../metadata/address.ts'
import { UNIX_PROXIES } from './settings.ts'

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
/** Node ends the connection at the second timeout without progress. */
const UNREAD_TIMEOUT_MS = 30_000
/** The most bytes of unread responses. They are in memory. */
const MAX_UNREAD_BYTES = 64 * 2 ** 20
/** The most requests of a connection whose responses are not sent: one in work, and those behind it. */
const MAX_REQUESTS = 16

interface Connection {
  readonly socket: Socket
  /** Empty: without a bound of its own. */
  readonly address: string
  /** The account or user whose access token came by it. Undefined: none has. */
  owner: string | undefined
  /** Begin its requests. The first one has begun, and is `current`. */
  readonly requests: (() => void)[]
  /** It had too many requests, and gets no more. */
  isOver: boolean
  current: { readonly request: IncomingMessage; readonly response: ServerResponse } | undefined
}
const CONNECTION = Symbol('connection')
/** `_parent` (undocumented): the connection of a TLS socket. */
type Connected = Socket & { [CONNECTION]?: Connection; readonly _parent?: Connected }

/** The open connections of one listener. */
export class ClientConnections {
  readonly #parts: ConnectionsParts
  readonly #isProxy: (address: string) => boolean
  /** In the order of their last requests. */
  readonly #open = new Set<Connection>()
  readonly #addresses = new ByOwner<Connection>()
  readonly #isDue: (name: string) => boolean

  constructor(parts: ConnectionsParts) {
    this.#parts = parts
    this.#isDue = buildEachMinute(parts.now)
    this.#isProxy = buildNetworkTest(parts.trustedProxies.filter((proxy) => proxy !== UNIX_PROXIES))
  }

  /** Begins to bound the connections of a server, until it closes. */
  start(fastify: Pick<FastifyInstance, 'server' | 'addHook'>): void {
    const { server } = fastify
    server.on('connection', (socket: Socket) => this.#admit(socket))
    const handlers = server.listeners('request') as RequestListener[]
    server.removeAllListeners('request')
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      this.#receive(request, response, () => {
        for (const handle of handlers) handle(request, response)
      })
    })
    server.on('timeout', (socket: Socket) => {
      const connection = connectionOf(socket)
      if (connection?.current === undefined) socket.destroy()
      else this.#close(connection, 'unread')
    })
    const checks = setInterval(() => this.checkUnread(), CHECK_INTERVAL_MS)
    fastify.addHook('onClose', (_server, done) => {
      clearInterval(checks)
      done()
    })
  }

  /** Ends the connections that wait for their peer, at a stop. */
  endWaiting(): void {
    for (const connection of this.#open) if (isWaiting(connection)) connection.socket.destroy()
  }

  /**
   * Limits the time in which the responses that are unread at present must be read. Ends those that have too many bytes,
   * but not one that has begun since the last check: it may be in flight.
   */
  checkUnread(): void {
    const unread: { readonly connection: Connection; readonly owner: string; readonly bytes: number }[] = []
    for (const connection of this.#open) {
      const { address, owner = address, current } = connection
      if (current?.response.headersSent !== true || current.request.socket.writableLength === 0) continue
      const { socket } = current.request
      if (socket.timeout === UNREAD_TIMEOUT_MS) unread.push({ connection, owner, bytes: socket.writableLength })
      else socket.setTimeout(UNREAD_TIMEOUT_MS)
    }
    while (sumOf(unread) > MAX_UNREAD_BYTES) {
      const owners = [...Map.groupBy(unread, ({ owner }) => owner).values()]
      const [oldest] = owners.reduce((a, b) => (sumOf(b) > sumOf(a) ? b : a))
      unread.splice(unread.indexOf(oldest!), 1)
      this.#close(oldest!.connection, 'unread')
    }
  }

  #admit(socket: Connected): void {
    const { maxConnections, maxPerAddress } = this.#parts
    const address = this.#addressOf(socket)
    const connection: Connection = {
      socket,
      address,
      owner: undefined,
      requests: [],
      isOver: false,
      current: undefined,
    }
    if (address !== '' && this.#addresses.countOf(address) >= maxPerAddress) {
      this.#close(connection, 'address')
      return
    }
    if (this.#open.size >= maxConnections) {
      this.#warn()
      const replaced = mostDispensable(this.#open) ?? connection
      this.#close(replaced, 'all')
      if (replaced === connection) return
    }
    socket[CONNECTION] = connection
    this.#open.add(connection)
    this.#addresses.add(address, connection)
    socket.once('close', () => this.#remove(connection))
  }

  /** Begins a request, or lets it wait behind the one in work. */
  #receive(request: IncomingMessage, response: ServerResponse, begin: () => void): void {
    const { socket } = request
    const connection = connectionOf(socket)!
    const { requests } = connection
    if (connection.isOver) return
    if (requests.length === MAX_REQUESTS) {
      connection.isOver = true
      this.#parts.onClose('pipelined')
      requests.push(() => socket.destroySoon())
      return
    }
    const beginNext = () => {
      if (socket.destroyed) return
      requests[0]?.()
      if (requests.length === 0) socket.resume()
    }
    requests.push(() => {
      this.#open.delete(connection)
      this.#open.add(connection)
      connection.current = { request, response }
      socket.setTimeout(0)
      response.once('close', () => {
        connection.current = undefined
        requests.shift()
        beginNext()
      })
      begin()
    })
    if (requests.length === 1) beginNext()
    else socket.pause()
  }

  #close(connection: Connection, reason: ClosedReason): void {
    this.#parts.onClose(reason)
    this.#remove(connection) // before its event, since more connections may arrive in this turn
    if (reason === 'unread' && connection.socket.remoteAddress !== undefined) connection.socket.resetAndDestroy() // the system forgets the response too
    else connection.socket.destroy()
  }

  #remove(connection: Connection): void {
    this.#open.delete(connection)
    this.#addresses.remove(connection.address, connection)
  }

  #addressOf({ remoteAddress }: Socket): string {
    if (remoteAddress === undefined || this.#isProxy(remoteAddress)) return ''
    return sourceOf(canonicalAddress(remoteAddress) ?? remoteAddress)
  }

  #warn(): void {
    const { maxConnections, log } = this.#parts
    if (!this.#isDue('full')) return
    log.warn(
      { code: 'connections-full', connections: maxConnections },
      'all connections are in use: those without an access token are closed, then those of the account with the most; ' +
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

/** True unless imds-api works on a request of it, which has arrived whole, and whose response has not begun. */
function isWaiting({ current }: Connection): boolean {
  return current?.request.complete !== true || current.response.headersSent
}

/** The connection that makes room for another. Undefined: none has an owner, and all are in work. */
function mostDispensable(open: ReadonlySet<Connection>): Connection | undefined {
  for (const connection of open) if (connection.owner === undefined && isWaiting(connection)) return connection
  const owned = [...open].filter(({ owner }) => owner !== undefined)
  const [most] = [...Map.groupBy(owned, ({ owner }) => owner).values()].sort((a, b) => b.length - a.length)
  return most?.find(isWaiting) ?? most?.[0]
}

function sumOf(unread: readonly { readonly bytes: number }[]): number {
  return unread.reduce((sum, { bytes }) => sum + bytes, 0)
}
