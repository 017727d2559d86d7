/**
 * The guest side of the daemon, one server a listener. A request's whole path is `serve` and `decide`:
 *
 *   socket -> identify -> fair share -> parse the target -> session token -> resolve -> answer
 *
 * It runs as Fastify's first hook, before a body is read: bodies are read and discarded after the answer (contract A4; linger.ts).
 * To the router every target is `/`: the tree knows what a path is, and looking for a route in vain costs a fifth of the rate. An
 * answer goes out in one write with its headers ready, past Fastify's own reply, which would add a charset and cost a third of the
 * rate. LIMITS end slow and idle connections. Two answers wait: that of an address which the view does not know, since the
 * store is asked within bounds, and the one that tells a guest to ask less; and on a kept connection most wait for the end of the turn.
 */
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { performance } from 'node:perf_hooks' // the global one is a getter
import type { Logger } from 'pino'
import { refusalText, sendContent, sendRefusal, type Refusal } from './respond.ts'
import type { RefusalLog } from './refusal-log.ts'
import { Connections, CHECK_INTERVAL_MS } from './connections.ts'
import { decide, isLast, REFUSED_UNREAD, type Decision, type Rules } from './authorize.ts'
import { peerAddress, refusalOf, type Directory, type Found } from './identify.ts'
import { closeSoon, closeUnread, LINGER_MS } from './linger.ts'
import { isCounted, type RequestMeter } from './meter.ts'
import type { Share, Shares } from './share.ts'
import { Targets } from './targets.ts'

/** What a guest server is made of. */
export interface GuestServerParts {
  /** The network of this listener: half of a guest's identity. */
  readonly network: string
  /** So many connections may be open at once; more are closed unanswered. */
  readonly maxConnections: number
  readonly directory: Directory
  readonly shares: Shares
  readonly rules: Rules
  readonly meter: RequestMeter
  readonly refusalLog: RefusalLog
  readonly log: Logger
}

const LIMITS = {
  /** Idle connections close soon, because AWS's JavaScript client waits for that (contract A5; docs/clients.md#keep-alive). */
  keepAliveTimeout: 3_500, // Node adds a second of grace, and looks once a second
  /** A whole request, headers and body, must arrive in this time. */
  requestTimeout: 10_000,
  /** Headers and request line: the longest real one is a tag key of 255 escaped characters. */
  maxHeaderSize: 16_384,
}

/** No route has a schema: Fastify's own compilers need 20 ms of every start, and memory. */
const NO_SCHEMAS = { compilersFactory: { buildValidator: () => noSchema, buildSerializer: () => noSchema } }

/** To find the idle among all connections takes milliseconds where they are many; in a flood of drops it is done so often, in ms. */
const MAKE_ROOM_EVERY_MS = 100
/** An answer that tells a guest to ask less comes after so long, in ms: what it asks too much costs nearly nothing. */
const WAIT_MS = 100
/** Connections beyond a guest's share are held, not read, and refused; beyond so many times its share they are reset. */
const RESET_ABOVE = 4
/** They linger for so long at most, in ms, and so do those whose request took all of its time. */
const SHORT_LINGER_MS = 1_000

/** An answer waits for no more others than these. */
const READY_AT_ONCE = 64

/** Builds the server of one listener; it does not listen yet. */
export function buildGuestServer({ network, maxConnections, directory, shares, rules, meter, refusalLog, log }: GuestServerParts): FastifyInstance {
  const tracing = log.isLevelEnabled('debug')
  const connections = new Connections()
  const targets = new Targets()
  /** Answers that wait for the end of this turn of the event loop: sent one behind the other they cost a tenth less than each in its request. */
  const ready: (() => void)[] = []
  /** Connections whose guest is told to wait. */
  const waiting = new Set<Socket>()

  const server = Fastify({
    logger: false,
    keepAliveTimeout: LIMITS.keepAliveTimeout,
    requestTimeout: LIMITS.requestTimeout,
    return503OnClosing: false,
    exposeHeadRoutes: false,
    rewriteUrl,
    schemaController: NO_SCHEMAS,
    genReqId: () => '', // no line names it
    http: {
      maxHeaderSize: LIMITS.maxHeaderSize,
      headersTimeout: LIMITS.requestTimeout,
      connectionsCheckingInterval: 1_000,
      requireHostHeader: false,
      optimizeEmptyRequests: true,
    },
    clientErrorHandler: (error, socket) => { refuseUnread(error, socket) },
  })

  server.addHook('onRequest', serve)
  server.all('/', () => null) // never reached: the hook answers
  server.server.maxConnections = maxConnections
  Object.assign(server.server, { httpAllowHalfOpen: true }) // undocumented: who has closed its side is still sent what it asked for
  server.server.on('connection', admit)
  server.server.closeAllConnections = () => { connections.destroyAll() } // Node's own leaves out one that asked for CONNECT
  const looks = setInterval(() => {
    meter.dropped('stalled', connections.endStalled(performance.now()))
    shares.sweep(performance.now())
  }, CHECK_INTERVAL_MS)
  server.addHook('onClose', (_server, done) => {
    clearInterval(looks)
    done()
  })
  let makeRoomAtMs = 0
  server.server.on('drop', () => {
    meter.dropped('descriptors', 1)
    refusalLog.dropped(network, maxConnections)
    if (performance.now() < makeRoomAtMs) return
    makeRoomAtMs = performance.now() + MAKE_ROOM_EVERY_MS
    server.server.closeIdleConnections() // a guest that asks comes before one that has its answer
    connections.endLingering()
  })
  server.server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => server.server.emit('request', request, response))
  server.server.on('connect', ({ socket }: IncomingMessage) => {
    socket.on('error', () => { /* reset: there is nobody left to answer. Node has taken its own listener away */ })
    const found = directory.find(network, peerAddress(socket))
    refuseRaw(socket, found, refusalOf(found, peerAddress(socket)) ?? 'method-not-allowed', 'CONNECT')
  })
  return server

  /** A new connection counts for whoever it comes from. */
  function admit(socket: Socket): void {
    const found = directory.find(network, peerAddress(socket))
    const share = shareOf(found, peerAddress(socket))
    const used = connections.add(socket, share)
    if (used > RESET_ABOVE) {
      meter.dropped('over-share', 1)
      socket.resetAndDestroy()
    } else if (used > 1 || share.isPenalized(performance.now())) {
      process.nextTick(() => { socket.pause() }) // after Node's own start of reading, and before it reads
      wait(socket, () => { refuseRaw(socket, found, used > 1 ? 'too-many-connections' : 'over-share', '', SHORT_LINGER_MS) })
    }
  }

  function serve({ raw: request, originalUrl: target }: FastifyRequest, reply: FastifyReply): void {
    const startedMs = performance.now()
    reply.hijack()
    const { socket } = request
    const address = peerAddress(socket)
    if (address === '') { // reset since: there is nobody to answer, and nobody to count
      socket.destroy()
      return
    }
    if (socket.writableEnded) return // it was told on the connection itself, with nothing to follow
    connections.answers(socket, reply.raw)
    const found = directory.find(network, address)
    const share = shareOf(found, address)
    if (waiting.has(socket)) {
      refusePipelined(socket, share)
      return
    }
    if (!share.spend(startedMs, typeof found === 'string' ? null : found)) {
      wait(socket, () => { answer(request, reply.raw, address, found, { route: 'unknown', content: null, outcome: 'over-share', ttlSeconds: null }, startedMs) })
      return
    }
    const question = found === 'unknown' ? directory.ask(network, address) : null
    if (question === null) judge(request, target, reply.raw, address, found, startedMs)
    else void question.then((late) => { judge(request, target, reply.raw, address, late, startedMs) })
  }

  function judge(request: IncomingMessage, target: string, response: ServerResponse, address: string, found: Found, startedMs: number): void {
    const { method = '', headers, httpVersion } = request
    let decision: Decision
    try {
      const asked = { network, address, found, method, target: targets.parse(target), headers, httpVersion, connection: request.socket }
      decision = decide(asked, rules, meter)
    } catch (error) {
      log.error({ err: error }, 'request failed')
      decision = { route: 'unknown', content: null, outcome: 'internal-error', ttlSeconds: null }
    }
    const send = () => {
      try {
        answer(request, response, address, found, decision, startedMs)
      } catch (error) { // one guest's, not everybody's
        log.error({ err: error }, 'request failed')
        request.socket.destroy()
      }
    }
    if (!response.shouldKeepAlive || response.socket === null) send() // held, the one costs more; of the other Node must know what it owes
    else if (ready.push(send) === 1) setImmediate(sendReady)
    else if (ready.length === READY_AT_ONCE) sendReady()
  }

  function sendReady(): void {
    for (const send of ready.splice(0)) send()
  }

  function answer(request: IncomingMessage, response: ServerResponse, address: string, found: Found, decision: Decision, startedMs: number): void {
    const { method = '', headers } = request
    const { route, content, outcome, ttlSeconds } = decision
    const last = isLast(headers, outcome)
    if (last) {
      response.shouldKeepAlive = false
      lingerAtEnd(request.socket)
    }
    if (outcome === 'served') sendContent(response, content!, ttlSeconds)
    else sendRefusal(response, outcome, method === 'GET', ttlSeconds)
    if (response.socket?.writableLength === 0 && !last) connections.sent(response.socket, response)
    const durationMs = performance.now() - startedMs
    meter.answered(route, method, outcome, durationMs / 1000)
    if (outcome !== 'served') refusalLog.refused(network, address, idOf(found), outcome)
    if (tracing) log.debug({ instance: idOf(found), route, status: response.statusCode, durationMs, reason: outcome }, 'request')
  }

  /** Lets a guest that asks too much wait for the word that it does. */
  function wait(socket: Socket, tell: () => void): void {
    waiting.add(socket)
    setTimeout(() => {
      waiting.delete(socket)
      tell()
    }, WAIT_MS)
  }

  /**
   * A peer that goes on sending requests while it is told to wait: all of its connections are reset, and while the penalty lasts new ones are
   * not read at all. Node reads 64 KiB at a time, so up to 3,600 requests may follow in this turn; they are not made.
   */
  function refusePipelined(socket: Socket, share: Share): void {
    stopParsing(socket)
    share.penalize(performance.now())
    socket.resetAndDestroy() // opened while its guest was unknown, it is not among those of the guest's share
    meter.dropped('over-share', 1 + connections.endAll(share))
  }

  /** No request could be read: Node's parser refused it, or it did not arrive in time. */
  function refuseUnread(error: NodeJS.ErrnoException, socket: Socket): void {
    const address = peerAddress(socket)
    if (error.code === 'ECONNRESET' || address === '') {
      socket.destroy()
      return
    }
    const found = directory.find(network, address)
    if (error.code === 'HPE_CLOSED_CONNECTION') endAfterAnswers(socket) // more than the last request: nobody waits for an answer to it
    else {
      const refusal = REFUSED_UNREAD[error.code ?? ''] ?? 'malformed-request'
      refuseRaw(socket, found, refusalOf(found, address) ?? refusal, '', refusal === 'request-timeout' ? SHORT_LINGER_MS : LINGER_MS)
    }
  }

  /**
   * Answers of former requests may still be on their way: a refusal that overtook them would be taken for one of them. So would one that
   * follows the answer to the very request whose body is at fault: that one only ends the connection.
   */
  function refuseRaw(socket: Socket, found: Found, refusal: Refusal, method: string, lingerMs = LINGER_MS): void {
    const last = connections.lastAnswer(socket)
    if (last === null) return
    meter.answered('unknown', method, refusal, null)
    refusalLog.refused(network, peerAddress(socket), idOf(found), refusal)
    if (last?.req.complete === false) endAfterAnswers(socket)
    else afterAnswers(socket, () => { close(socket, refusalText(refusal), lingerMs) })
  }

  function endAfterAnswers(socket: Socket): void {
    const last = connections.lastAnswer(socket)
    if (last?.writableEnded === false) last.shouldKeepAlive = false // one that waits says so itself
    afterAnswers(socket, () => { close(socket) })
  }

  function afterAnswers(socket: Socket, act: () => void): void {
    const last = connections.lastAnswer(socket)
    if (last === null) return
    lingerAtEnd(socket)
    connections.answers(socket, null)
    if (last === undefined || last.writableFinished) act()
    else last.once('finish', act)
  }

  /** After the last answer of a connection Node closes it at once, by `destroySoon`. Let it linger instead, since more may arrive. */
  function lingerAtEnd(socket: Socket): void {
    socket.destroySoon = () => {
      connections.answers(socket, null)
      close(socket)
    }
  }

  /** A peer that is penalized, or has used up what is read and discarded for it, is not read any more. */
  function close(socket: Socket, text = '', lingerMs = LINGER_MS): void {
    const share = connections.shareOf(socket)
    const mayDiscard = (bytes: number) => share?.discard(performance.now(), bytes) === true
    if (share?.isPenalized(performance.now()) === false && mayDiscard(0)) closeSoon(socket, text, lingerMs, mayDiscard)
    else closeUnread(socket, text)
  }

  function shareOf(found: Found, address: string): Share {
    return typeof found === 'string' ? shares.ofUnknown(network, address) : shares.of(found.instance.id)
  }
}

/**
 * Lets Node's parser make one more request of the bytes that it has, which nobody sees, and no others. Undocumented: 2 is what Node's own
 * listener returns for an upgrade. Where a later Node ignores it, the requests are made, and seen to be of a connection that is gone.
 */
function stopParsing(socket: Socket & { parser?: { onIncoming: unknown } | null }): void {
  if (socket.parser) socket.parser.onIncoming = () => 2
}

/** To Fastify every target is `/`, and every method one that it knows: to RTSP's, which Node's parser reads too, it would answer by itself. */
function rewriteUrl(request: { method?: string | undefined }): string {
  if (!isCounted(request.method ?? '')) request.method = 'TRACE' // counted as `other`
  return '/'
}

function idOf(found: Found): string | undefined {
  return typeof found === 'string' ? undefined : found.instance.id
}

function noSchema(): never {
  throw new Error('no route has a schema')
}
