/**
 * The guest side of the daemon: one server for each listener. `RequestPipeline` has the steps of a request in their order:
 * identify, take the request from the fair share, look up an unknown peer, authorize, resolve, wait if that is necessary,
 * respond.
 *
 * The steps run in Fastify's first hook, before a body is read. Only the body of a report is read (reports.ts); all
 * others are discarded after the response (contract A4; linger.ts).
 *
 * A request may have to wait: for a lookup, a signature, the body of a report or a change. Its steps run again then, from
 * the beginning, so each of them decides by what is true then. Meanwhile nothing more is read from its connection.
 *
 * connection-guard.ts admits, bounds and ends connections: share.ts has what a guest may use, connections.ts the open
 * ones, reading.ts stops reading, and linger.ts closes.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { performance } from 'node:perf_hooks'
import { TargetCache, type Target } from '../../metadata/target.ts'
import { authorize, type Rules } from './authorize.ts'
import { ConnectionGuard, type ConnectionGuardParts } from './connection-guard.ts'
import {
  ADDRESS_LOST,
  outcomeOf,
  refused,
  WAITED_FOR_NOTHING,
  type Exchange,
  type RequestResult,
  type Resolution,
  type ServedRequest,
  type Wait,
  type WaitResults,
} from './exchange.ts'
import type { HeldRequests } from './held-requests.ts'
import { buildHttpServer } from './http-server.ts'
import { finderAt, guestOf, idOf, peerAddress, type Guest, type GuestFinder } from './identify.ts'
import type { RequestMeter } from './meter.ts'
import { awaitChange, priceOfQuery } from './queries.ts'
import { receiveReport, type GuestReports } from './reports.ts'
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
const UNCOUNTED: Pick<RequestMeter, 'countSession' | 'countForwarded'> = {
  countSession: () => undefined,
  countForwarded: () => undefined,
}

/** Builds the server of one listener. It does not listen yet. */
export function buildGuestServer(parts: GuestServerParts): FastifyInstance {
  const pipeline = new RequestPipeline(parts)
  const server = buildHttpServer(pipeline.guard)
  server.server.once('listening', () => {
    // read once: a server that stops has no address any more, and still answers
    const address = server.server.address()
    pipeline.setAddress(typeof address === 'string' ? undefined : address?.address)
  })
  server.addHook('onRequest', (request, reply) => pipeline.serve(request, reply))
  server.all('/', () => undefined) // never reached: the hook responds
  return server
}

/** The steps of a request from its listener to its response. */
export class RequestPipeline {
  readonly guard: ConnectionGuard
  readonly #parts: GuestServerParts
  readonly #responder: Responder
  readonly #targets = new TargetCache()
  #finder: Pick<GuestFinder, 'find' | 'lookUp'>

  constructor(parts: GuestServerParts) {
    const { finder, meter, refusalLog, log } = parts
    this.#parts = parts
    this.#finder = finderAt(undefined, finder)
    this.guard = new ConnectionGuard({ ...parts, finder: () => this.#finder })
    this.#responder = new Responder({ guard: this.guard, meter, refusalLog, log })
    finder.onChange((id) => this.guard.endLost(id))
  }

  /** Sets the address of the listener, which decides whether loopback addresses identify guests. */
  setAddress(host: string | undefined): void {
    this.#finder = finderAt(host, this.#parts.finder)
  }

  serve(request: FastifyRequest, reply: FastifyReply): void {
    reply.hijack()
    const exchange = this.#identify(request, reply)
    if (!this.guard.admitRequest(exchange)) return
    if (this.guard.takeFromShare(exchange)) this.#runSteps(exchange)
    else {
      const result = refused('over-share', 'unknown')
      this.guard.refuseLater(exchange.request.socket, () => this.#send(exchange, undefined, result))
    }
  }

  #identify({ raw: request, originalUrl: rawTarget }: FastifyRequest, { raw: response }: FastifyReply): Exchange {
    const startedMs = performance.now()
    const { network } = this.#parts
    const address = peerAddress(request.socket)
    const found = this.#finder.find(network, address)
    const had = WAITED_FOR_NOTHING
    return { network, address, found, request, body: request, rawTarget, response, startedMs, had }
  }

  /** Runs the steps, and responds or waits. */
  #runSteps(exchange: Exchange): void {
    const { target, result } = this.#resolve(exchange)
    if (result.kind !== 'wait') {
      this.#send(exchange, target, result)
      return
    }
    this.guard.charge(exchange, result.cost ?? 0)
    this.guard.stopReading(exchange.request.socket)
    result.start((got) => this.#runAgain(exchange, target, got), this.#parts.log)
  }

  /** Runs the steps of a request that has waited. It is not answered if its address has another owner since. */
  #runAgain(before: Exchange, target: Target | undefined, got: WaitResults): void {
    const found = this.#finder.find(before.network, before.address)
    const startedMs = got.change === undefined ? before.startedMs : performance.now()
    if (got.lookup === true) {
      const exchange = { ...before, found, had: got }
      this.guard.noteOwner(exchange)
      this.#runSteps(exchange)
      return
    }
    if (idOf(found) !== idOf(before.found)) {
      this.#send({ ...before, found, startedMs }, target, ADDRESS_LOST)
      return
    }
    const isReplaced = before.had.steps === 'other-record' || guestOf(found) !== guestOf(before.found)
    const steps = isReplaced ? 'other-record' : 'same-record'
    this.#runSteps({ ...before, found, startedMs, had: { ...before.had, ...got, steps } })
  }

  #resolve(exchange: Exchange): Resolution {
    const { rules, meter, log } = this.#parts
    const { found, had } = exchange
    const lookup = found.kind === 'unknown' && had === WAITED_FOR_NOTHING ? this.#lookUp(exchange) : undefined
    if (lookup !== undefined) return { target: undefined, result: lookup }
    let target: Target | undefined
    try {
      const parsed = this.#targets.parse(exchange.rawTarget)
      if (parsed.ok) target = parsed.value
      const authorized = authorize(exchange, parsed, rules, had.steps === undefined ? meter : UNCOUNTED)
      if (authorized.kind === 'refused') return { target, result: authorized }
      const result = resolve(exchange, authorized, rules)
      if (result.kind !== 'served') return { target, result }
      return { target, result: this.#complete(exchange, authorized.guest, authorized.target, result) }
    } catch (error) {
      log.error({ code: 'request-failed', err: error }, 'request failed; the guest gets 500')
      return { target, result: refused('internal-error', 'unknown') }
    }
  }

  #lookUp({ network, address }: Exchange): Wait | undefined {
    const found = this.#finder.lookUp(network, address)
    if (found === undefined) return undefined
    return { kind: 'wait', start: (done) => void found.then(() => done({ lookup: true })) }
  }

  /** What is special of reports and of requests with a query. */
  #complete(exchange: Exchange, guest: Guest, target: Target, served: ServedRequest): RequestResult | Wait {
    const { query, path, version } = target
    if (target.route === '/latest/reports') return receiveReport(exchange, guest, path, served, this.#parts)
    if (query === undefined) return served
    if (exchange.had.change === undefined) this.guard.charge(exchange, priceOfQuery(query, guest))
    return awaitChange(exchange, guest.instance.id, query, served, () => guest.has(version, path), this.#parts.held)
  }

  #send(exchange: Exchange, target: Target | undefined, result: RequestResult): void {
    const { found, request, startedMs } = exchange
    const topic = target?.topic ?? 'other'
    this.#parts.requests.note(found, topic, outcomeOf(result), request.headers['user-agent'], startedMs)
    this.#responder.sendBatched(exchange, result)
  }
}
