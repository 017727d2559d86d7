/**
 * The guest side of the daemon, one server a listener. A request's whole path is `decide`:
 *
 *   socket -> identify -> parse the target -> resolve -> answer
 *
 * It runs as Fastify's first hook, before a body is looked at: whatever a request brings is drained by Node and ignored (contract A4).
 * To the router every target is `/`: the tree knows what a path is, and looking for a route in vain costs a fifth of the rate. An
 * answer goes out in one write with its headers ready, past Fastify's own reply, which would add a charset and cost a third of the
 * rate. LIMITS end slow and idle connections. The one answer that may wait is that of an address which the view does not know: the
 * store is asked, within bounds.
 */
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Logger } from 'pino'
import { parseTarget, type Route } from '../metadata/target.ts'
import { VERSION_LIST, type Content } from '../metadata/tree.ts'
import { sendContent, sendRefusal, sendRefusalRaw, type Refusal } from './answers.ts'
import type { Complaints } from './complaints.ts'
import { peerAddress, refusalOf, type Directory, type Found, type Guest } from './identify.ts'
import type { Outcome, RequestMeter } from './meter.ts'

/** What a guest server is made of. */
export interface GuestServerParts {
  /** The network of this listener: half of a guest's identity. */
  readonly network: string
  /** So many connections may be open at once; more are closed unanswered. */
  readonly maxConnections: number
  readonly directory: Directory
  readonly meter: RequestMeter
  readonly complaints: Complaints
  readonly log: Logger
}

/** What a request comes to: who asked, for which kind of path, and the content or the refusal. */
interface Decision { readonly guest: Guest | null, readonly route: Route, readonly content: Content | null, readonly outcome: Outcome }

const LIMITS = {
  /** A's contract: idle connections close soon, since AWS's JavaScript client waits for that (reference/clients.md 2.5). */
  keepAliveTimeout: 3_500, // Node adds a second of grace, and looks once a second
  /** A whole request, headers and body, must arrive in this time. */
  requestTimeout: 10_000,
  /** A connection on which nothing moves, such as one that never reads its answer. */
  connectionTimeout: 30_000,
  /** Headers and request line: the longest real one is a tag key of 255 escaped characters. */
  maxHeaderSize: 16_384,
}

/** To find the idle among all connections takes milliseconds where they are many; in a flood of drops it is done so often, in ms. */
const MAKE_ROOM_EVERY_MS = 100

/** Builds the server of one listener; it does not listen yet. */
export function buildGuestServer({ network, maxConnections, directory, meter, complaints, log }: GuestServerParts): FastifyInstance {
  const tracing = log.isLevelEnabled('debug')

  const server = Fastify({
    logger: false,
    keepAliveTimeout: LIMITS.keepAliveTimeout,
    requestTimeout: LIMITS.requestTimeout,
    connectionTimeout: LIMITS.connectionTimeout,
    return503OnClosing: false,
    exposeHeadRoutes: false,
    rewriteUrl: () => '/',
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
  let makeRoomAtMs = 0
  server.server.on('drop', () => {
    meter.dropped()
    complaints.dropped(network, maxConnections)
    if (performance.now() < makeRoomAtMs) return
    makeRoomAtMs = performance.now() + MAKE_ROOM_EVERY_MS
    server.server.closeIdleConnections() // who asks comes before who has asked
  })
  server.server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => server.server.emit('request', request, response))
  server.server.on('connect', (request: IncomingMessage, socket: Socket) => {
    const address = peerAddress(request.socket)
    refuseRaw(socket, refusalOf(directory.find(network, address), address) ?? 'method-not-allowed', 'CONNECT')
  })
  return server

  function serve({ raw: request, originalUrl: target }: FastifyRequest, reply: FastifyReply): void {
    const startedMs = performance.now()
    reply.hijack()
    const address = peerAddress(request.socket)
    if (address === '') { // reset since: there is nobody to answer, and nobody to count
      request.socket.destroy()
      return
    }
    const found = directory.find(network, address)
    const question = found === 'unknown' ? directory.ask(network, address) : null
    if (question === null) answer(request, target, reply.raw, address, found, startedMs)
    else void question.then((late) => { answer(request, target, reply.raw, address, late, startedMs) })
  }

  function answer(request: IncomingMessage, target: string, response: ServerResponse, address: string, found: Found, startedMs: number): void {
    let decision: Decision
    try {
      decision = decide(request.method ?? '', target, found, address)
    } catch (error) {
      log.error({ err: error }, 'request failed')
      decision = { guest: guestOf(found), route: 'unknown', content: null, outcome: 'internal-error' }
    }
    const { guest, route, content, outcome } = decision
    if (outcome === 'served') sendContent(response, content!)
    else sendRefusal(response, outcome, request.method === 'HEAD')
    const durationMs = performance.now() - startedMs
    meter.answered(route, request.method ?? '', outcome, durationMs / 1000)
    if (guest === null && outcome !== 'served') complaints.refused(network, address, outcome)
    if (tracing) log.debug({ instance: guest?.instance.id, route, status: response.statusCode, durationMs, reason: outcome }, 'request')
  }

  /** No request could be read: Node's parser refused it, or it did not arrive in time. */
  function refuseUnread(error: NodeJS.ErrnoException, socket: Socket): void {
    if (error.code === 'ECONNRESET' || error.code === 'HPE_CLOSED_CONNECTION' || !socket.writable || peerAddress(socket) === '') {
      socket.destroy()
      return
    }
    const address = peerAddress(socket)
    const refusal = refusalOf(directory.find(network, address), address)
    if (refusal !== null) refuseRaw(socket, refusal, '')
    else if (error.code === 'HPE_HEADER_OVERFLOW') refuseRaw(socket, 'headers-too-large', '')
    else if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') refuseRaw(socket, 'request-timeout', '')
    else refuseRaw(socket, 'malformed-request', '')
  }

  function refuseRaw(socket: Socket, refusal: Refusal, method: string): void {
    meter.answered('unknown', method, refusal, 0)
    sendRefusalRaw(socket, refusal)
  }
}

function guestOf(found: Found): Guest | null {
  return typeof found === 'string' ? null : found
}

/** What a request comes to, once it is known who asks. */
function decide(method: string, rawTarget: string, found: Found, address: string): Decision {
  const refusal = refusalOf(found, address)
  if (refusal !== null) return { guest: guestOf(found), route: 'unknown', content: null, outcome: refusal }
  const guest = found as Guest
  const target = parseTarget(rawTarget)
  if (target === 'malformed') return { guest, route: 'unknown', content: null, outcome: 'malformed-target' }
  const { route, version, path } = target
  if (route === 'unknown') return { guest, route, content: null, outcome: 'not-found' }
  if (method !== 'GET' && method !== 'HEAD') return { guest, route, content: null, outcome: 'method-not-allowed' }
  const content = route === '/' ? VERSION_LIST : guest.resolve(version, path) ?? null
  return { guest, route, content, outcome: content === null ? 'not-found' : 'served' }
}
