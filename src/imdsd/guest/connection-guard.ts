/**
 * Protects a listener from its connections: it admits each connection according to the share of its peer, refuses bytes
 * that are not a request, closes connections gracefully, and resets those that cost too much.
 *
 * A peer with too many connections or too many requests is refused only after REFUSAL_DELAY_MS. Bytes that are not a
 * request, requests that do not arrive in time, and CONNECT count as requests. While a response is pending, no further
 * request of its connection is read (reading.ts). A connection that ends lingers (linger.ts), so that the peer receives
 * the last response. The connections of an address are reset when its owner changes (contract E6).
 *
 * Node ends a connection by its `destroySoon`, which is replaced: at first by a faster one, for the last response by one
 * that lingers, and by none while it lingers.
 *
 * It guarantees that no refusal overtakes the response to an earlier request of the same connection: the peer would
 * take it for that response. Node itself enforces the limit of open connections, and the timeouts of idle and slow
 * connections.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { performance } from 'node:perf_hooks'
import { isAcceptedVersion } from '../../runtime/http.ts'
import type { LastRequests } from './last-requests.ts'
import { CHECK_INTERVAL_MS, GuestConnections } from './connections.ts'
import type { Exchange } from './exchange.ts'
import { guestOf, idOf, peerAddress, refusalOf, type FoundGuest, type GuestFinder } from './identify.ts'
import { closeFlushed, closeSoon, closeUnread, LINGER_MS } from './linger.ts'
import type { RequestMeter } from './meter.ts'
import { isDueToPause, stopReading } from './reading.ts'
import type { RefusalLog } from './refusal-log.ts'
import { refusalText, type RefusalReason } from './refusals.ts'
import { priceOf, type Share, type Shares } from './share.ts'

export interface ConnectionGuardParts {
  /** The network of the listener. */
  readonly network: string
  /** The most connections that may be open at a time; Node drops further ones. */
  readonly maxConnections: number
  /** What the listener finds: known once it listens. */
  readonly finder: () => Pick<GuestFinder, 'find'>
  readonly shares: Shares
  readonly meter: RequestMeter
  readonly requests: LastRequests
  readonly refusalLog: RefusalLog
}

/** The delay of a refusal, in ms. It limits how much a peer that exceeds its share and retries can cost. */
const REFUSAL_DELAY_MS = 100
/**
 * Connections beyond a peer's share are refused after the delay; connections beyond this multiple of the share are
 * reset.
 */
const RESET_ABOVE = 4
/** The linger time of connections beyond a share, and of those whose request did not arrive in time, in ms. */
const SHORT_LINGER_MS = 1_000
/**
 * The shortest time between two closes of idle connections when the listener is full, in ms. Finding them takes
 * milliseconds.
 */
const CLOSE_IDLE_INTERVAL_MS = 100

/** Error codes of Node, and the refusal that each leads to. */
const UNREADABLE: Readonly<Record<string, RefusalReason | undefined>> = {
  HPE_HEADER_OVERFLOW: 'headers-too-large',
  ERR_HTTP_REQUEST_TIMEOUT: 'request-timeout',
}

export class ConnectionGuard {
  readonly #parts: ConnectionGuardParts
  readonly #connections = new GuestConnections()
  #checks: NodeJS.Timeout | undefined
  #closedIdleAtMs = -Infinity

  constructor(parts: ConnectionGuardParts) {
    this.#parts = parts
  }

  /** Guards a server. While it listens, its connections are checked every CHECK_INTERVAL_MS. */
  start(server: Server): void {
    const { maxConnections, meter } = this.#parts
    server.maxConnections = maxConnections
    // undocumented: a peer that has closed its side still gets its responses
    Object.assign(server, { httpAllowHalfOpen: true })
    server.closeAllConnections = () => {
      this.#connections.destroyAll()
    } // Node's own method leaves out connections that sent CONNECT
    server.on('connection', (socket: Socket) => this.#admit(socket))
    server.on('drop', () => this.#closeIdle(server))
    server.on('connect', (request: IncomingMessage) => this.#refuseConnect(request))
    server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) =>
      server.emit('request', request, response),
    )
    server.once('listening', () => {
      this.#checks = setInterval(() => {
        const { flooding, stalled } = this.#connections.check(performance.now())
        meter.countDrops('over-share', flooding)
        meter.countDrops('stalled', stalled)
      }, CHECK_INTERVAL_MS)
    })
  }

  /** Ends the checks. */
  stop(): void {
    clearInterval(this.#checks)
  }

  /** Notes a new request of a connection. False: the peer has reset the connection. */
  admitRequest({ address, found, request: { socket }, response }: Exchange): boolean {
    if (address === '') {
      socket.destroy()
      return false
    }
    this.#connections.addRequest(socket, response, idOf(found))
    return true
  }

  /** Notes the instance of a peer that was unknown when its request came. */
  noteOwner({ found, request: { socket } }: Exchange): void {
    this.#connections.setOwner(socket, idOf(found))
  }

  /** Resets the connections from addresses that an instance no longer has. What is on its way to them is lost. */
  endLost(id: string): void {
    const { network, meter } = this.#parts
    const finder = this.#parts.finder()
    const isLost = (socket: Socket) => idOf(finder.find(network, peerAddress(socket))) !== id
    meter.countDrops('owner-changed', this.#connections.endOf(id, isLost))
  }

  /** Reads no further request from a connection until its pending responses have been sent. */
  stopReading(socket: Socket): void {
    const last = this.#connections.currentResponse(socket)
    if (last?.writableFinished === false) stopReading(socket, last)
  }

  /** Takes a request from the share of its peer, at the price of its size. False if the share is used up. */
  takeFromShare({ found, address, startedMs, rawTarget, request: { rawHeaders } }: Exchange): boolean {
    const share = this.#shareOf(found, address)
    if (!share.spend(startedMs, guestOf(found))) return false
    share.charge(startedMs, priceOf(rawTarget, rawHeaders) - 1)
    return true
  }

  /** Takes more from the share of a peer than the one request that `takeFromShare` took. */
  charge({ found, address }: Exchange, requests: number): void {
    this.#shareOf(found, address).charge(performance.now(), requests)
  }

  /** Refuses a request or a connection after REFUSAL_DELAY_MS. */
  refuseLater(socket: Socket, refuse: () => void): void {
    this.stopReading(socket)
    setTimeout(refuse, REFUSAL_DELAY_MS)
  }

  /** Makes a connection linger after its last response. Node would close it at once, by `destroySoon`. */
  lingerAtEnd(socket: Socket): void {
    socket.destroySoon = () => {
      this.#connections.beginEnd(socket)
      this.#close(socket)
    }
  }

  /** Refuses bytes that are not a request: Node's parser rejected them, or the rest did not arrive in time. */
  refuseUnreadable(error: NodeJS.ErrnoException, socket: Socket): void {
    if (isDueToPause(error, socket)) return
    const address = peerAddress(socket)
    if (error.code === 'ECONNRESET' || address === '') {
      socket.destroy()
      return
    }
    if (error.code === 'HPE_CLOSED_CONNECTION') {
      // more data after the last request, which needs no response
      this.#endAfterResponses(socket)
      return
    }
    const refusal = UNREADABLE[error.code ?? ''] ?? 'malformed-request'
    this.#refuseInShare(socket, refusal, '', refusal === 'request-timeout' ? SHORT_LINGER_MS : LINGER_MS)
  }

  /**
   * Counts a new connection in the share of its peer. It is refused after a delay, or reset, if it exceeds the share; and
   * refused if the peer has sent more bytes in vain than its share has.
   */
  #admit(socket: Socket): void {
    const { network, meter } = this.#parts
    const address = peerAddress(socket)
    const found = this.#parts.finder().find(network, address)
    const share = this.#shareOf(found, address)
    const used = this.#connections.add(socket, share, idOf(found))
    socket.destroySoon = closeFlushed
    if (used > RESET_ABOVE) {
      meter.countDrops('over-share', 1)
      socket.resetAndDestroy()
    } else if (used > 1 || !share.discard(performance.now(), 0)) {
      process.nextTick(() => socket.pause()) // after Node has started to read, and before it reads
      const refusal = used > 1 ? 'too-many-connections' : 'over-share'
      this.refuseLater(socket, () => this.#refuse(socket, found, refusal, '', SHORT_LINGER_MS))
    }
  }

  /** Closes idle connections when the listener is full: a new request is more urgent than an idle connection. */
  #closeIdle(server: Server): void {
    const { network, maxConnections, meter, refusalLog } = this.#parts
    meter.countDrops('descriptors', 1)
    refusalLog.logDrop(network, maxConnections)
    const now = performance.now()
    if (now < this.#closedIdleAtMs + CLOSE_IDLE_INTERVAL_MS) return
    this.#closedIdleAtMs = now
    server.closeIdleConnections()
    this.#connections.endLingering()
  }

  #refuseConnect({ socket, httpVersion }: IncomingMessage): void {
    socket.on('error', () => undefined) // reset by the peer; Node has removed its own listener
    this.#refuseInShare(
      socket,
      isAcceptedVersion(httpVersion) ? 'method-not-allowed' : 'malformed-request',
      'CONNECT',
      LINGER_MS,
    )
  }

  /**
   * Refuses what is not a request that can be served, and takes it from the share of its peer. If the share is used up,
   * refuses it after the delay.
   */
  #refuseInShare(socket: Socket, refusal: RefusalReason, method: string, lingerMs: number): void {
    if (this.#connections.isEnding(socket)) return
    if (this.#connections.currentResponse(socket)?.req.complete === false) {
      // In the body of a request that was counted: the peer would take a refusal for a second response.
      this.#endAfterResponses(socket)
      return
    }
    const address = peerAddress(socket)
    const found = this.#parts.finder().find(this.#parts.network, address)
    if (this.#shareOf(found, address).spend(performance.now(), guestOf(found)))
      this.#refuse(socket, found, refusalOf(found, address) ?? refusal, method, lingerMs)
    else {
      socket.pause()
      this.refuseLater(socket, () => this.#refuse(socket, found, 'over-share', method, SHORT_LINGER_MS))
    }
  }

  /** Writes a refusal to the socket, after the responses to earlier requests. */
  #refuse(socket: Socket, found: FoundGuest, refusal: RefusalReason, method: string, lingerMs: number): void {
    if (this.#connections.isEnding(socket)) return
    const { network, meter, requests, refusalLog } = this.#parts
    meter.countResponse('unknown', method, refusal, undefined)
    requests.note(found, 'other', refusal, undefined, performance.now())
    refusalLog.logRefusal(network, peerAddress(socket), idOf(found), refusal)
    this.#endAfterResponses(socket, refusalText(refusal), lingerMs)
  }

  #endAfterResponses(socket: Socket, text = '', lingerMs = LINGER_MS): void {
    if (this.#connections.isEnding(socket)) return
    const last = this.#connections.currentResponse(socket)
    // not written yet: adds `Connection: close` to it
    if (text === '' && last?.writableEnded === false) last.shouldKeepAlive = false
    const end = () => this.#close(socket, text, lingerMs)
    this.#connections.beginEnd(socket)
    socket.destroySoon = end // before `finish`, if the peer has closed its side
    if (last === undefined || last.writableFinished) end()
    else last.once('finish', end)
  }

  /** Ends a connection after `text`. Continues to read, unless its peer has used up its share of discarded bytes. */
  #close(socket: Socket, text = '', lingerMs = LINGER_MS): void {
    const share = this.#connections.shareOf(socket)
    const discard = (bytes: number) => share?.discard(performance.now(), bytes) === true
    if (discard(0)) closeSoon(socket, text, lingerMs, discard)
    else closeUnread(socket, text)
  }

  #shareOf(found: FoundGuest, address: string): Share {
    const { network, shares } = this.#parts
    return found.kind === 'owned' ? shares.of(found.owner.instance.id) : shares.ofUnknown(network, address)
  }
}
