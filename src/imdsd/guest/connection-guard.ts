/**
 * Protects a listener from its connections: it admits each connection according to the share of its peer, refuses bytes
 * that are not a request, closes connections gracefully, and resets those that cost too much.
 *
 * A peer with too many connections or too many requests is refused only after REFUSAL_DELAY_MS. Bytes that are not a
 * request, requests that do not arrive in time, and CONNECT count as requests. During the delay its connection may not
 * send further requests (pipelining). A connection that ends lingers (linger.ts), so that the peer receives the last
 * response.
 *
 * It guarantees that no refusal overtakes the response to an earlier request of the same connection: the peer would
 * take it for that response. Node itself enforces the limit of open connections, and the timeouts of idle and slow
 * connections.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { performance } from 'node:perf_hooks'
import { isAcceptedVersion } from '../../runtime/http-version.ts'
import type { BootTraces } from './boot-traces.ts'
import { CHECK_INTERVAL_MS, GuestConnections } from './connections.ts'
import type { Exchange } from './exchange.ts'
import { guestOf, idOf, peerAddress, refusalOf, type FoundGuest, type GuestFinder } from './identify.ts'
import { closeFlushed, closeSoon, closeUnread, LINGER_MS } from './linger.ts'
import type { RequestMeter } from './meter.ts'
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
  readonly traces: BootTraces
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
  readonly #delayed = new Set<Socket>()
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
        const { flooding, idle } = this.#connections.endWithoutRequests(performance.now())
        meter.countDrops('over-share', flooding)
        meter.countDrops('stalled', idle + this.#connections.endStalled(performance.now()))
      }, CHECK_INTERVAL_MS)
    })
  }

  /** Ends the checks. */
  stop(): void {
    clearInterval(this.#checks)
  }

  /**
   * Resets the connection of a request if its peer is gone, or pipelines during a delayed refusal. False: it was reset.
   */
  keepOrReset({ address, found, request: { socket }, response }: Exchange): boolean {
    if (address === '') {
      socket.destroy() // reset by the peer
      return false
    }
    this.#connections.setCurrentResponse(socket, response)
    if (!this.#delayed.has(socket)) return true
    this.#resetPipelining(socket, this.#shareOf(found, address))
    return false
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

  /** Refuses a connection after REFUSAL_DELAY_MS. */
  refuseLater(socket: Socket, refuse: () => void): void {
    this.#delayed.add(socket)
    setTimeout(() => {
      this.#delayed.delete(socket)
      refuse()
    }, REFUSAL_DELAY_MS)
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
   * Counts a new connection in the share of its peer. One that exceeds the share is refused after a delay, or reset.
   */
  #admit(socket: Socket): void {
    const { network, meter } = this.#parts
    const address = peerAddress(socket)
    const found = this.#parts.finder().find(network, address)
    const share = this.#shareOf(found, address)
    const used = this.#connections.add(socket, share)
    socket.destroySoon = closeFlushed
    if (used > RESET_ABOVE) {
      meter.countDrops('over-share', 1)
      socket.resetAndDestroy()
    } else if (used > 1 || share.isPenalized(performance.now())) {
      process.nextTick(() => socket.pause()) // after Node has started to read, and before it reads
      this.refuseLater(socket, () => {
        this.#refuse(socket, found, used > 1 ? 'too-many-connections' : 'over-share', '', SHORT_LINGER_MS)
      })
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
   * refuses it after the delay; resets a peer that sent it during the delay of another refusal.
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
    const share = this.#shareOf(found, address)
    if (this.#delayed.has(socket)) this.#resetPipelining(socket, share)
    else if (share.spend(performance.now(), guestOf(found)))
      this.#refuse(socket, found, refusalOf(found, address) ?? refusal, method, lingerMs)
    else {
      socket.pause()
      this.refuseLater(socket, () => this.#refuse(socket, found, 'over-share', method, SHORT_LINGER_MS))
    }
  }

  /**
   * Resets all connections of a peer that pipelines during a delayed refusal. During the penalty, its new connections
   * are not read. Node reads 64 KiB at a time, so up to 3,600 requests may follow in this turn; they are not parsed.
   */
  #resetPipelining(socket: Socket, share: Share): void {
    stopParsing(socket)
    share.penalize(performance.now())
    // may be counted in another share: its peer may have been unknown when the connection was opened
    socket.resetAndDestroy()
    this.#parts.meter.countDrops('over-share', 1 + this.#connections.endAll(share))
  }

  /** Writes a refusal to the socket, after the responses to earlier requests. */
  #refuse(socket: Socket, found: FoundGuest, refusal: RefusalReason, method: string, lingerMs: number): void {
    if (this.#connections.isEnding(socket)) return
    const { network, meter, traces, refusalLog } = this.#parts
    meter.countResponse('unknown', method, refusal, undefined)
    traces.note(found, {
      topic: 'other',
      outcome: refusal,
      hasToken: false,
      agent: undefined,
      atMs: performance.now(),
    })
    refusalLog.logRefusal(network, peerAddress(socket), idOf(found), refusal)
    this.#afterResponses(socket, () => this.#close(socket, refusalText(refusal), lingerMs))
  }

  #endAfterResponses(socket: Socket): void {
    const last = this.#connections.currentResponse(socket)
    if (last?.writableEnded === false) last.shouldKeepAlive = false // not written yet: adds `Connection: close` to it
    this.#afterResponses(socket, () => this.#close(socket))
  }

  #afterResponses(socket: Socket, act: () => void): void {
    if (this.#connections.isEnding(socket)) return
    const last = this.#connections.currentResponse(socket)
    this.lingerAtEnd(socket)
    this.#connections.beginEnd(socket)
    if (last === undefined || last.writableFinished) act()
    else last.once('finish', act)
  }

  /**
   * Ends a connection after `text`. Continues to read, unless its peer is penalized or has used up its share of
   * discarded bytes.
   */
  #close(socket: Socket, text = '', lingerMs = LINGER_MS): void {
    const share = this.#connections.shareOf(socket)
    const discard = (bytes: number) => share?.discard(performance.now(), bytes) === true
    if (share?.isPenalized(performance.now()) === false && discard(0)) closeSoon(socket, text, lingerMs, discard)
    else closeUnread(socket, text)
  }

  #shareOf(found: FoundGuest, address: string): Share {
    const { network, shares } = this.#parts
    return found.kind === 'owned' ? shares.of(found.owner.instance.id) : shares.ofUnknown(network, address)
  }
}

/**
 * Makes Node's parser drop all but one of the requests that it has read already. Undocumented: 2 is what Node's own
 * listener returns for an upgrade. If a version of Node ignores it, the requests are parsed, and `keepOrReset` drops them
 * because their connection is gone.
 */
function stopParsing(socket: Socket & { parser?: { onIncoming: unknown } }): void {
  if (socket.parser) socket.parser.onIncoming = () => 2
}
