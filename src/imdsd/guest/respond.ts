/**
 * Sends the responses of a listener, and counts and logs each of them.
 *
 * A response is sent in one write with a prepared header list. It bypasses Fastify's reply, which is slower and would
 * add a charset. On a connection that stays open, a response waits for the end of the turn of the event loop, and up to
 * MAX_BATCH responses are sent together: that is faster than sending each alone.
 */
import type { IncomingHttpHeaders } from 'node:http'
import { performance } from 'node:perf_hooks' // as a global it is an accessor, which costs more than the clock
import type { Log } from '../../runtime/log-codes.ts'
import { isBodyless } from '../../metadata/target.ts'
import { namesWeakly } from '../../runtime/http.ts'
import type { ConnectionGuard } from './connection-guard.ts'
import { outcomeOf, type Exchange, type RequestResult } from './exchange.ts'
import { idOf } from './identify.ts'
import type { RequestOutcome, RequestMeter } from './meter.ts'
import type { RefusalLog } from './refusal-log.ts'
import { responseOf } from './refusals.ts'

/** The header with the seconds that a session token has left, or that a PUT asks for (EC2's name). */
export const TTL_HEADER = 'X-aws-ec2-metadata-token-ttl-seconds'

const MAX_BATCH = 64

export interface ResponderParts {
  readonly guard: ConnectionGuard
  readonly meter: RequestMeter
  readonly refusalLog: RefusalLog
  readonly log: Log
}

export class Responder {
  readonly #parts: ResponderParts
  readonly #batch: (() => void)[] = []
  readonly #sendBatch = () => {
    for (const send of this.#batch.splice(0)) send()
  }

  constructor(parts: ResponderParts) {
    this.#parts = parts
  }

  /** Responds at the end of this turn of the event loop, or at once if the connection closes. */
  sendBatched(exchange: Exchange, result: RequestResult): void {
    const { response } = exchange
    // Send now: batching is slower for connections that close, and Node must know which pipelined responses are ready.
    if (!response.shouldKeepAlive || !response.socket) this.sendNow(exchange, result)
    else if (this.#batch.push(() => this.sendNow(exchange, result)) === 1) setImmediate(this.#sendBatch)
    else if (this.#batch.length === MAX_BATCH) this.#sendBatch()
  }

  sendNow(exchange: Exchange, result: RequestResult): void {
    try {
      this.#send(exchange, result)
    } catch (error) {
      // affects one guest only
      this.#parts.log.error({ code: 'response-failed', err: error }, 'response failed; its connection is closed')
      exchange.request.socket.destroy()
    }
  }

  #send(exchange: Exchange, result: RequestResult): void {
    const {
      network,
      address,
      found,
      request: { method = '', headers, socket },
      response,
      startedMs,
    } = exchange
    const { guard, meter, refusalLog, log } = this.#parts
    const outcome = outcomeOf(result)
    // a report whose body was read is like a request without a body
    const last = exchange.had.body?.kind !== 'read' && isLast(headers, outcome)
    if (last) {
      response.shouldKeepAlive = false
      guard.lingerAtEnd(socket)
    }
    write(exchange, result)
    if (socket.writableNeedDrain) guard.stopReading(socket) // the peer reads more slowly than it asks
    const durationMs = performance.now() - startedMs
    const counted = response.statusCode === 304 ? 'not-modified' : outcome
    meter.countResponse(result.route, method, counted, durationMs / 1000)
    if (outcome !== 'served') refusalLog.logRefusal(network, address, idOf(found), outcome)
    if (log.isLevelEnabled('debug'))
      log.debug(
        { instance: idOf(found), route: result.route, status: response.statusCode, durationMs, reason: outcome },
        'request',
      )
  }
}

/**
 * Writes status, headers and body. A HEAD gets the headers of the GET. Only a GET gets the page of a refusal: a person
 * may read it, but a shell script would use the body of a refused PUT as its token. systemd takes an error with a page for
 * a fatal one, so its requests ask for none (docs/clients.md#systemd). Content that the guest has gets 304 (contract H1).
 */
function write({ request: { method, headers: asked }, rawTarget, response }: Exchange, result: RequestResult): void {
  if (result.kind === 'served') {
    const {
      content: { headers, body, etag },
      ttlSeconds,
    } = result
    const ifNoneMatch = asked['if-none-match']
    if (ifNoneMatch !== undefined && etag !== undefined && namesWeakly(ifNoneMatch, etag)) {
      response.writeHead(304, withTtl(['ETag', etag], ttlSeconds) as string[])
      response.end()
      return
    }
    response.writeHead(200, withTtl(headers, ttlSeconds) as string[])
    response.end(body, 'latin1')
    return
  }
  const hasBody = method === 'GET' && !isBodyless(rawTarget)
  const { status, headers, body, headersWithoutBody } = responseOf(result.refusal)
  response.writeHead(status, withTtl(hasBody ? headers : headersWithoutBody, result.ttlSeconds) as string[])
  response.end(hasBody ? body : '', 'latin1')
}

function withTtl(headers: readonly string[], ttlSeconds: number | undefined): readonly string[] {
  return ttlSeconds === undefined ? headers : [...headers, TTL_HEADER, String(ttlSeconds)]
}

/**
 * Whether a request is the last one of its connection: its end is uncertain, it is an upgrade (Node loses what follows
 * it in the same packet), or it has a body, which is discarded without being parsed.
 */
export function isLast(headers: IncomingHttpHeaders, outcome: RequestOutcome): boolean {
  return (
    outcome === 'malformed-request' ||
    headers.upgrade !== undefined ||
    headers['transfer-encoding'] !== undefined ||
    (headers['content-length'] ?? '0') !== '0'
  )
}
