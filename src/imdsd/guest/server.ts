/**
 * The guest side of the daemon: one server for each listener. `serve` lists the steps of a request in their order.
 *
 * The steps run in Fastify's first hook, before a body is read. Only the body of a report is read (H9), within bounds;
 * all others are discarded after the response (contract A4; linger.ts). Fastify sees the target `/` for every request:
 * the tree resolves paths, and a second router costs a part of the rate.
 *
 * Two steps may wait, each at most a second: the lookup of an unknown peer, and a signature. A guest may ask to be
 * answered only when a value changes (contract H1): such a request runs the steps again after each change.
 */
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import type { ServerResponse } from 'node:http'
import { performance } from 'node:perf_hooks' // the global one is a getter
import { NO_SCHEMA_COMPILERS } from '../../runtime/fastify-settings.ts'
import { authorize, type Rules } from './authorize.ts'
import { ConnectionGuard, type ConnectionGuardParts } from './connection-guard.ts'
import { refused, type Exchange, type Pending, type RequestResult, type Served } from './exchange.ts'
import type { HeldRequests, Wake } from './held-requests.ts'
import { idOf, peersOf, type Directory, type Guest, type Peers } from './identify.ts'
import { isCounted, type RequestMeter } from './meter.ts'
import { settle } from './pending.ts'
import { readBody } from './body.ts'
import type { GuestReports } from './reports.ts'
import { MAX_REPORTS_BYTES } from '../../metadata/reports.ts'
import { resolve } from './resolve.ts'
import type { RefusalReason } from './refusals.ts'
import { Responder, type ResponderParts } from './respond.ts'
import { TargetCache, type Target, type Topic } from '../../metadata/target.ts'

/** The parts of a guest server. The network of the listener is one half of a guest's identity. */
export interface GuestServerParts extends Omit<ConnectionGuardParts, 'peers'>, Omit<ResponderParts, 'guard'> {
  readonly directory: Directory
  /** Whether a listener at this address is a link-local one. */
  readonly isLinkLocal: (host: string) => boolean
  readonly rules: Rules
  readonly held: HeldRequests
  readonly reports: GuestReports
}

/** The longest time that the body of a report may take. */
const BODY_TIMEOUT_MS = 5_000
/** How many paths of a subtree cost as much as a request. */
const PATHS_PER_REQUEST = 16
/** For the repeated steps of a held request, which was counted when it arrived. */
const UNCOUNTED = { session: () => undefined, forwarded: () => undefined }
/** For a request whose guest lost its address meanwhile: it never gets the value of another instance. */
const GONE = refused('unknown-peer', 'unknown')

const LIMITS = {
  /** AWS's JavaScript client waits until an idle connection closes (contract A5; docs/clients.md#keep-alive). */
  keepAliveTimeout: 3_500, // Node adds a second of grace, and checks once a second
  /** A request, headers and body, must arrive in this time. */
  requestTimeout: 10_000,
  /** Request line and headers: the longest real ones have a tag key of 255 escaped characters. */
  maxHeaderSize: 16_384,
}

/** Builds the server of one listener. It does not listen yet. */
export function buildGuestServer(parts: GuestServerParts): FastifyInstance {
  const { network, rules, meter, traces, refusalLog, held, reports, log } = parts
  let peers: Peers = peersOf(undefined, parts.isLinkLocal, parts.directory)
  const guard = new ConnectionGuard({ ...parts, peers: () => peers })
  const responder = new Responder({ guard, meter, refusalLog, log })
  const targets = new TargetCache()

  const server = buildFastify(guard)
  server.server.once('listening', () => {
    // kept, since a server that stops has no address any more, and still answers
    const place = server.server.address()
    peers = peersOf(typeof place === 'string' ? undefined : place?.address, parts.isLinkLocal, parts.directory)
  })
  server.addHook('onRequest', serve)
  server.all('/', () => undefined) // never reached: `serve` responds
  return server

  /** The steps of a request: identify, admit by share, look up an unknown peer, then authorize, resolve and respond. */
  function serve(request: FastifyRequest, reply: FastifyReply): void {
    reply.hijack()
    const exchange = identify(request, reply.raw)
    if (!guard.accepts(exchange)) return
    if (!guard.hasShare(exchange)) {
      guard.refuseLater(exchange.request.socket, () => {
        const result = refused('over-share', 'unknown')
        note(exchange, 'other', result)
        responder.send(exchange, result)
      })
      return
    }
    const lookup = exchange.found.kind === 'unknown' ? peers.ask(network, exchange.address) : undefined
    if (lookup === undefined) finish(exchange)
    else
      void lookup.then((found) => {
        finish({ ...exchange, found })
      })
  }

  function finish(exchange: Exchange): void {
    const answer = answerTo(exchange, meter)
    const { result } = answer
    if (answer.target?.route === '/latest/reports' && result.kind === 'served') {
      receive(exchange, answer.topic, result)
      return
    }
    if (result.kind !== 'pending') {
      respondTo(exchange, answer, result)
      return
    }
    guard.charge(exchange, result.cost)
    void made(exchange, result).then((now) => {
      respondTo(exchange, answer, now)
    })
  }

  /** Reads the body of a report, and keeps it if the guest may still report then. */
  function receive(exchange: Exchange, topic: Topic, served: Served): void {
    const { owner } = exchange.found as Extract<Exchange['found'], { kind: 'owned' }>
    const refuse = (refusal: RefusalReason) => {
      send(exchange, topic, refused(refusal, served.route, served.ttlSeconds))
    }
    if (!reports.admits(owner)) {
      refuse('too-many-reports')
      return
    }
    readBody(exchange.body, MAX_REPORTS_BYTES, BODY_TIMEOUT_MS, (body) => {
      if (body.kind === 'gone') return
      if (body.kind !== 'read') {
        refuse(body.kind === 'too-large' ? 'report-too-large' : 'request-timeout')
        return
      }
      const found = peers.find(network, exchange.address)
      if (found.kind !== 'owned' || found.owner.instance.id !== owner.instance.id) {
        send(exchange, topic, GONE)
        return
      }
      const { target, result } = answerTo({ ...exchange, found }, UNCOUNTED)
      if (result.kind === 'refused') {
        send(exchange, topic, result)
        return
      }
      const outcome = reports.accept(found.owner, target?.path ?? '', body.bytes)
      if (outcome.kind === 'refused') {
        refuse(outcome.refusal)
        return
      }
      if (outcome.ignored.length > 0) refusalLog.ignoredKeys(network, owner.instance.id, outcome.ignored)
      send(exchange, topic, { ...served, content: outcome.content })
    })
  }

  /** Waits for content that is being made, and then checks again whether the guest may have it. */
  async function made(exchange: Exchange, pending: Pending): Promise<RequestResult> {
    const result = await settle(pending, log)
    const found = peers.find(network, exchange.address)
    if (idOf(found) !== idOf(exchange.found)) return GONE
    const now = authorize({ ...exchange, found }, targets.parse(exchange.target), rules, UNCOUNTED)
    return now.kind === 'refused' ? now : result
  }

  /** Responds, or holds a request that waits for a change. */
  function respondTo(exchange: Exchange, { target, topic }: Answer, result: RequestResult): void {
    const query = target?.query
    if (query === undefined || result.kind === 'refused') {
      send(exchange, topic, result)
      return
    }
    const guest = (exchange.found as Extract<Exchange['found'], { kind: 'owned' }>).owner
    if (query.recursive) guard.charge(exchange, guest.paths / PATHS_PER_REQUEST)
    const { etag } = result.content
    const { lastEtag = etag?.slice(1, -1), timeoutMs = 0 } = query.wait ?? {}
    if (query.wait === undefined || etag === undefined || etag !== `"${lastEtag ?? ''}"` || held.isStopping)
      send(exchange, topic, result)
    else if (!held.admits(guest.instance.id))
      send(exchange, topic, refused('too-many-waiting', result.route, result.ttlSeconds))
    else {
      // one second more than is left of the token, so that the timeout finds it expired
      const leftMs = result.ttlSeconds === undefined ? Infinity : (result.ttlSeconds + 1) * 1000
      held.hold(guest.instance.id, exchange, Math.min(timeoutMs, leftMs), (wake) => check(exchange, guest, etag, wake))
    }
  }

  /** Runs the steps of a held request again. False: its value is the same, and it stays held. */
  function check(before: Exchange, guest: Guest, etag: string, wake: Wake): boolean {
    const found = peers.find(network, before.address)
    const exchange = { ...before, found, startedMs: performance.now() }
    if (wake === 'stop') exchange.response.shouldKeepAlive = false
    if (idOf(found) !== guest.instance.id) {
      send(exchange, 'other', GONE)
      return true
    }
    const { target, topic, result } = answerTo(exchange, UNCOUNTED)
    if (result.kind === 'pending') return checkMade(exchange, topic, result, wake)
    if (result.kind === 'served' && target !== undefined && wake === 'changed') {
      const { owner } = found as Extract<Exchange['found'], { kind: 'owned' }>
      if (!owner.has(target.version, target.path))
        send(exchange, topic, refused('not-found', result.route, result.ttlSeconds))
      else if (result.content.etag === etag) return false
      else send(exchange, topic, result)
    } else send(exchange, topic, result)
    return true
  }

  /** Like `check`, for a value that is being made after the change: it is checked once it is made. */
  function checkMade(exchange: Exchange, topic: Topic, pending: Pending, wake: Wake): boolean {
    if (wake === 'changed') {
      const recheck = () => {
        held.changed(idOf(exchange.found) ?? '')
      }
      pending.content.then(recheck, () => undefined) // after a failure, the next change or the timeout checks again
      return false
    }
    void made(exchange, pending).then((result) => {
      send(exchange, topic, result)
    })
    return true
  }

  /** Authorizes and resolves a request. */
  function answerTo(exchange: Exchange, counts: Pick<RequestMeter, 'session' | 'forwarded'>): Answer {
    let target: Target | undefined
    try {
      const parsed = targets.parse(exchange.target)
      if (parsed.ok) target = parsed.value
      const authorization = authorize(exchange, parsed, rules, counts)
      const result = authorization.kind === 'refused' ? authorization : resolve(exchange, authorization, rules)
      return { target, topic: target?.topic ?? 'other', result }
    } catch (error) {
      log.error({ err: error }, 'request failed; the guest gets 500')
      return { target, topic: target?.topic ?? 'other', result: refused('internal-error', 'unknown') }
    }
  }

  function send(exchange: Exchange, topic: Topic, result: RequestResult): void {
    note(exchange, topic, result)
    responder.respond(exchange, result)
  }

  /** Notes a request in the boot trace of its guest. */
  function note({ found, request: { headers }, startedMs }: Exchange, topic: Topic, result: RequestResult): void {
    traces.note(found, {
      topic,
      outcome: result.kind === 'served' ? 'served' : result.refusal,
      hasToken: result.ttlSeconds !== undefined && topic !== 'token',
      agent: headers['user-agent'],
      atMs: startedMs,
    })
  }

  /** Finds the instance of the peer. */
  function identify({ raw: request, originalUrl: target }: FastifyRequest, response: ServerResponse): Exchange {
    const startedMs = performance.now()
    const address = peers.addressOf(request.socket)
    return {
      network,
      address,
      found: peers.find(network, address),
      request,
      body: request,
      target,
      response,
      startedMs,
    }
  }
}

/** The result of a request, with its target, if that could be parsed. */
interface Answer {
  readonly target: Target | undefined
  readonly topic: Topic
  readonly result: RequestResult | Pending
}

/** Builds the server that the guard protects, without hooks or routes of requests. */
function buildFastify(guard: ConnectionGuard): FastifyInstance {
  const server = Fastify({
    logger: false,
    keepAliveTimeout: LIMITS.keepAliveTimeout,
    requestTimeout: LIMITS.requestTimeout,
    return503OnClosing: false,
    exposeHeadRoutes: false,
    rewriteUrl,
    schemaController: NO_SCHEMA_COMPILERS,
    genReqId: () => '', // not used: no log line has the id of a request
    http: {
      maxHeaderSize: LIMITS.maxHeaderSize,
      headersTimeout: LIMITS.requestTimeout,
      connectionsCheckingInterval: 1_000,
      requireHostHeader: false,
      optimizeEmptyRequests: true,
    },
    clientErrorHandler: (error, socket) => {
      guard.refuseUnreadable(error, socket)
    },
  })
  server.addHook('onClose', (_server, done) => {
    guard.stop()
    done()
  })
  guard.start(server.server)
  return server
}

/**
 * Gives Fastify a target and a method that it knows. Otherwise it would itself refuse the methods of RTSP, which Node
 * parses too.
 */
function rewriteUrl(request: { method?: string | undefined }): string {
  if (!isCounted(request.method ?? '')) request.method = 'TRACE' // counted as `other`
  return '/'
}
