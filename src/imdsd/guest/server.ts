/**
 * The guest side of the daemon: one server for each listener. `RequestPipeline` has the steps of a request in their order:
 * identify, take the request from the fair share, look up an unknown peer, authorize, resolve, respond.
 *
 * The steps run in Fastify's first hook, before a body is read. Only the body of a report is read (receive-report.ts);
 * all others are discarded after the response (contract A4; linger.ts).
 *
 * Two steps may wait, each at most a second: the lookup of an unknown peer, and a signature (pending.ts). A request
 * may also ask to be answered only when a value changes (query-responder.ts).
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { performance } from 'node:perf_hooks'
import { TargetCache, type Target } from '../../metadata/target.ts'
import { authorize, type Rules } from './authorize.ts'
import { ConnectionGuard, type ConnectionGuardParts } from './connection-guard.ts'
import {
  outcomeOf,
  refused,
  type Resolution,
  type Exchange,
  type RefusedRequest,
  type RequestResult,
  type Steps,
} from './exchange.ts'
import type { HeldRequests } from './held-requests.ts'
import { buildHttpServer } from './http-server.ts'
import { finderAt, peerAddress, type GuestFinder, type FoundGuest } from './identify.ts'
import type { RequestMeter } from './meter.ts'
import { awaitAndRecheck } from './pending.ts'
import { buildQueryResponder, type RespondToQuery } from './query-responder.ts'
import { receiveReport } from './receive-report.ts'
import type { GuestReports } from './reports.ts'
import { resolve } from './resolve.ts'
import { Responder, type ResponderParts } from './respond.ts'

/** The parts of a guest server. The network of the listener is one half of a guest's identity. */
export interface GuestServerParts extends Omit<ConnectionGuardParts, 'finder'>, Omit<ResponderParts, 'guard'> {
  readonly finder: GuestFinder
  readonly rules: Rules
  readonly held: HeldRequests
  readonly reports: GuestReports
}

/** For the steps that run again: the request was counted when it arrived. */
const UNCOUNTED = { countSession: () => undefined, countForwarded: () => undefined }

/** Builds the server of one listener. It does not listen yet. */
export function buildGuestServer(parts: GuestServerParts): FastifyInstance {
  const pipeline = new RequestPipeline(parts)
  const server = buildHttpServer(pipeline.guard)
  server.server.once('listening', () => {
    // read once: a server that stops has no address any more, and still answers
    const place = server.server.address()
    pipeline.setAddress(typeof place === 'string' ? undefined : place?.address)
  })
  server.addHook('onRequest', (request, reply) => pipeline.serve(request, reply))
  server.all('/', () => undefined) // never reached: the hook responds
  return server
}

/** The steps of a request from its listener to its response. */
export class RequestPipeline implements Steps {
  readonly guard: ConnectionGuard
  readonly #parts: GuestServerParts
  readonly #responder: Responder
  readonly #respondToQuery: RespondToQuery
  readonly #targets = new TargetCache()
  #finder: GuestFinder

  constructor(parts: GuestServerParts) {
    const { meter, refusalLog, held, log } = parts
    this.#parts = parts
    this.#finder = finderAt(undefined, parts.finder)
    this.guard = new ConnectionGuard({ ...parts, finder: () => this.#finder })
    this.#responder = new Responder({ guard: this.guard, meter, refusalLog, log })
    this.#respondToQuery = buildQueryResponder({ steps: this, guard: this.guard, held, log })
  }

  /** Sets the address of the listener, which decides whether loopback addresses identify guests. */
  setAddress(host: string | undefined): void {
    this.#finder = finderAt(host, this.#parts.finder)
  }

  serve(request: FastifyRequest, reply: FastifyReply): void {
    reply.hijack()
    const exchange = this.#identify(request, reply)
    if (!this.guard.keepOrReset(exchange)) return
    if (!this.guard.takeFromShare(exchange)) {
      this.guard.refuseLater(exchange.request.socket, () => {
        const result = refused('over-share', 'unknown')
        this.#note(exchange, undefined, result)
        this.#responder.sendNow(exchange, result)
      })
      return
    }
    const lookup =
      exchange.found.kind === 'unknown' ? this.#finder.lookUp(exchange.network, exchange.address) : undefined
    if (lookup === undefined) this.#resolveAndRespond(exchange)
    else void lookup.then((found) => this.#resolveAndRespond({ ...exchange, found }))
  }

  #identify({ raw: request, originalUrl: rawTarget }: FastifyRequest, { raw: response }: FastifyReply): Exchange {
    const startedMs = performance.now()
    const { network } = this.#parts
    const address = peerAddress(request.socket)
    const found = this.#finder.find(network, address)
    return { network, address, found, request, body: request, rawTarget, response, startedMs }
  }

  #resolveAndRespond(exchange: Exchange): void {
    const { target, result } = this.#authorizeAndResolve(exchange, this.#parts.meter)
    if (result.kind === 'pending') {
      this.guard.charge(exchange, result.cost)
      void awaitAndRecheck(exchange, result, this, this.#parts.log).then((made) => {
        this.#respond(exchange, target, made)
      })
    } else if (result.kind === 'served' && result.route === '/latest/reports') {
      const { reports, refusalLog } = this.#parts
      receiveReport(exchange, target, result, { steps: this, reports, refusalLog })
    } else this.#respond(exchange, target, result)
  }

  #authorizeAndResolve(exchange: Exchange, counts: Pick<RequestMeter, 'countSession' | 'countForwarded'>): Resolution {
    const { rules, log } = this.#parts
    let target: Target | undefined
    try {
      const parsed = this.#targets.parse(exchange.rawTarget)
      if (parsed.ok) target = parsed.value
      const authorization = authorize(exchange, parsed, rules, counts)
      const result = authorization.kind === 'refused' ? authorization : resolve(exchange, authorization, rules)
      return { target, result }
    } catch (error) {
      log.error({ code: 'request-failed', err: error }, 'request failed; the guest gets 500')
      return { target, result: refused('internal-error', 'unknown') }
    }
  }

  #respond(exchange: Exchange, target: Target | undefined, result: RequestResult): void {
    if (target?.query === undefined || result.kind === 'refused') this.send(exchange, target, result)
    else this.#respondToQuery(exchange, { ...target, query: target.query }, result)
  }

  send(exchange: Exchange, target: Target | undefined, result: RequestResult): void {
    this.#note(exchange, target, result)
    this.#responder.sendBatched(exchange, result)
  }

  #note({ found, request: { headers }, startedMs }: Exchange, target: Target | undefined, result: RequestResult): void {
    const topic = target?.topic ?? 'other'
    this.#parts.traces.note(found, {
      topic,
      outcome: outcomeOf(result),
      hasToken: result.ttlSeconds !== undefined && topic !== 'token',
      agent: headers['user-agent'],
      atMs: startedMs,
    })
  }

  findAgain({ network, address }: Exchange): FoundGuest {
    return this.#finder.find(network, address)
  }

  resolveAgain(exchange: Exchange): Resolution {
    return this.#authorizeAndResolve(exchange, UNCOUNTED)
  }

  authorizeAgain(exchange: Exchange): RefusedRequest | undefined {
    const authorization = authorize(exchange, this.#targets.parse(exchange.rawTarget), this.#parts.rules, UNCOUNTED)
    return authorization.kind === 'refused' ? authorization : undefined
  }
}
