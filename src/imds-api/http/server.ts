/**
 * The HTTP server of the API: what all routes have in common. Every response is JSON, errors too (refusal.ts).
 * Parameters that a route does not know are ignored; wrong ones are refused with all faults at once.
 */
import type {} from '@fastify/swagger' // the types of a route's documentation
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import {
  fastify,
  type FastifyBaseLogger,
  type FastifyError,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type RawServerDefault,
} from 'fastify'
import { randomUUID } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { parse } from 'node:querystring'
import type { Log } from '../../runtime/log-codes.ts'
import { refuseOtherVersions } from '../../runtime/http.ts'
import { MAX_BODY_BYTES } from './body.ts'
import { buildClientAddress } from './client-address.ts'
import { findDatabaseTrouble, type DatabaseReport } from './database-errors.ts'
import { formatFaults } from './faults.ts'
import { MAX_PARAMETERS } from './head.ts'
import { Replay, sendReplay } from './idempotency.ts'
import { AJV_OPTIONS, buildLazyCompilers } from './lazy-compilers.ts'
import { bodyOf, notFound, refuse, statusOf, Refusal, type ShedQueue } from '../model/refusal.ts'
import { rateLimitHeaders } from '../../limits/rate-limit-headers.ts'
import { REQUEST_ID, requestIdOf } from './request-id.ts'
import { RouteTable } from './route-table.ts'
import { addServerSteps } from './steps.ts'
import { NOT_HTTP, refuseConnect, refuseUnreadable, type UnreadableReason } from './unreadable.ts'

/** A Fastify server whose handlers get the types of their route's schemas. */
export type ApiServer = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>

declare module 'fastify' {
  interface FastifyReply {
    /** The id of the resource that was sent, if the result is one. */
    respondedId: string | undefined
    /** True for a request that succeeded without a change, such as a repeat: its audit line says so. */
    changedNothing: boolean
    /** Ends the connection of a response that cannot be completed, so that the client sees that it is not whole. */
    cutOff: (cause: unknown) => void
  }
}

/**
 * Settings of a server. `onUnreadable` is called for a request that Node cannot read, and `onShed` for one that is
 * refused because too many wait: `owner` is its account or user, or the address of its client. `databaseReport` gets the
 * errors of the database. `tls`: PEM texts. With
 * `ca`, clients need a certificate of one of these authorities.
 */
export interface ApiServerSettings {
  readonly tls: { readonly cert: string; readonly key: string; readonly ca?: string } | undefined
  readonly trustedProxies: readonly string[]
  readonly onUnreadable: (reason: UnreadableReason) => void
  readonly onShed: (queue: ShedQueue, owner: string) => void
  readonly databaseReport: Pick<DatabaseReport, 'report'>
  readonly log: Log
}

/** When to repeat a request that was refused with service_unavailable. */
const RETRY_SECONDS = 1

/**
 * How long a client may take to send a request, and its head. Node checks for late ones every
 * `connectionsCheckingInterval`.
 */
const [REQUEST_TIMEOUT_MS, HEAD_TIMEOUT_MS] = [60_000, 20_000]
const HTTP = { connectionsCheckingInterval: 1_000, headersTimeout: HEAD_TIMEOUT_MS, requireHostHeader: false } as const

export function buildServer(settings: ApiServerSettings): ApiServer {
  const server = createServer(settings)
  refuseOtherProtocols(server, settings)
  decorateReplies(server, settings)
  addServerSteps(server, buildClientAddress(settings.trustedProxies))
  handleErrors(server, settings, handleUnknownRoutes(server))
  return server
}

function createServer({ tls, onUnreadable, log }: ApiServerSettings): ApiServer {
  const options = {
    logger: false,
    genReqId: requestIdOf,
    bodyLimit: MAX_BODY_BYTES,
    requestTimeout: REQUEST_TIMEOUT_MS,
    return503OnClosing: false,
    clientErrorHandler: (error: NodeJS.ErrnoException, socket: Socket) => {
      const requestId = randomUUID() // its headers cannot be read
      const reason = refuseUnreadable(error, socket, requestId)
      if (reason === undefined) return
      onUnreadable(reason)
      log.debug(
        { request_id: requestId, reason, code: error.code, address: socket.remoteAddress },
        'a request cannot be read: it was refused',
      )
    },
    routerOptions: {
      ignoreTrailingSlash: true,
      ignoreDuplicateSlashes: true, // of a base URL that ends with one
      querystringParser: (text: string) => parse(text, '&', '=', { maxKeys: MAX_PARAMETERS }), // beyond: 400, below
    },
    frameworkErrors: (error: FastifyError, request: FastifyRequest, reply: FastifyReply) => {
      // a path that cannot be decoded, or with too long an id
      const refusal =
        error.statusCode === 400 ? refuse('bad_request', error.message) : notFound(request.url.split('?', 1)[0]!)
      void send(reply.header(REQUEST_ID, request.id), refusal)
    },
    schemaController: { compilersFactory: buildLazyCompilers() },
    ajv: { customOptions: AJV_OPTIONS },
  } as const
  return tls === undefined
    ? fastify({ ...options, http: HTTP })
    : fastify({
        ...options,
        https: { ...HTTP, ...tls, handshakeTimeout: HEAD_TIMEOUT_MS, requestCert: tls.ca !== undefined },
      })
}

/** Refuses other versions of HTTP and CONNECT, and ignores an unknown Expect. */
function refuseOtherProtocols(server: ApiServer, { onUnreadable }: ApiServerSettings): void {
  refuseOtherVersions(
    server.server,
    (request) => {
      const requestId = requestIdOf(request)
      return {
        contentType: 'application/json; charset=utf-8',
        body: JSON.stringify(bodyOf(NOT_HTTP, requestId)),
        headers: { [REQUEST_ID]: requestId },
      }
    },
    () => onUnreadable(NOT_HTTP.name),
  )
  server.server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    server.server.emit('request', request, response)
  })
  server.server.on('connect', refuseConnect)
}

function decorateReplies(server: ApiServer, { tls, log }: ApiServerSettings): void {
  server.decorateReply('respondedId', undefined)
  server.decorateReply('changedNothing', false)
  server.decorateReply('cutOff', function (this: FastifyReply, cause: unknown) {
    const { id, method, routeOptions } = this.request
    // no failure, unless requests were shed: the access of the client has ended
    if (!(cause instanceof Refusal) || cause.options.shed !== undefined)
      log.error(
        { code: 'response-failed', err: cause, request_id: id, method, route: routeOptions.url },
        'failed in the middle of a response: its connection was closed',
      )
    const { socket } = this.raw
    // without chunks, as in HTTP/1.0, the end of a connection is the end of the body; TLS and unix sockets have no reset
    if (tls === undefined && socket?.remoteAddress !== undefined) socket.resetAndDestroy()
    else this.raw.destroy()
  })
}

type Handler = (request: FastifyRequest, reply: FastifyReply) => FastifyReply

/** Says which methods a path has. Returns the handler. */
function handleUnknownRoutes(server: ApiServer): Handler {
  const routes = new RouteTable()
  server.addHook('onRoute', ({ method, url }) => routes.add(url, Array.isArray(method) ? method : [method]))
  const refuseRoute: Handler = (request, reply) => {
    const path = request.url.split('?', 1)[0]!
    const allowed = routes.methodsOf(path)
    if (allowed.length === 0) return send(reply, refuse('resource_not_found', `there is no ${path}`))
    void reply.header('Allow', allowed.join(', '))
    return send(reply, refuse('method_not_allowed', `${request.method} is not one of ${allowed.join(', ')}`))
  }
  server.setNotFoundHandler(refuseRoute)
  return refuseRoute
}

function handleErrors(
  server: ApiServer,
  { onShed, databaseReport, log }: ApiServerSettings,
  refuseRoute: Handler,
): void {
  server.setErrorHandler((error: FastifyError | Refusal | Replay, request, reply) => {
    if (error instanceof Refusal) {
      if (error.options.shed !== undefined) onShed(error.options.shed, request.owner)
      return send(reply, error)
    }
    if (error instanceof Replay) return sendReplay(reply, error, send)
    if (request.is404) return refuseRoute(request, reply) // before it, Fastify wants a Content-Type of QUERY
    const isNoPath = error.validationContext === 'params' || error.code === 'FST_STATIC_FORBIDDEN_PATH'
    const refusal = isNoPath
      ? refuse('resource_not_found', `there is no ${request.url.split('?', 1)[0]!}`)
      : refusalOf(error)
    if (refusal.name === 'internal_server_error') {
      log.error(
        {
          code: 'request-failed',
          err: error,
          request_id: request.id,
          method: request.method,
          route: request.routeOptions.url,
        },
        'unexpected error: the request was answered 500',
      )
    }
    if (refusal === findDatabaseTrouble(error)?.refusal) databaseReport.report(error, { request_id: request.id })
    return send(reply, refusal)
  })
}

/** Makes the response of a refusal. */
function send(reply: FastifyReply, refusal: Refusal): FastifyReply {
  const { name, options } = refusal
  void reply.removeHeader('Link') // of a change that was rolled back
  const seconds = options.retrySeconds ?? (name === 'service_unavailable' ? RETRY_SECONDS : undefined)
  if (seconds !== undefined) void reply.header('Retry-After', String(seconds))
  if (options.quota !== undefined) void reply.headers(rateLimitHeaders(options.quota))
  if (options.tag !== undefined) void reply.header('ETag', options.tag)
  if (options.challenge !== undefined) void reply.header('WWW-Authenticate', options.challenge)
  return reply.code(statusOf(name)).send(bodyOf(refusal, reply.request.id))
}

/** What Fastify, the database or a bug has thrown, as a refusal. */
function refusalOf(error: FastifyError): Refusal {
  if (error.validation !== undefined) return new Refusal('unprocessable_entity', formatFaults(error.validation))
  switch (error.statusCode) {
    case 400:
      return refuse('bad_request', error.message)
    case 412:
      return refuse('precondition_failed', 'the file is not the one that the headers of the request demand')
    case 416:
      return refuse('range_not_satisfiable', 'the file has no such range')
    case 415:
      return refuse('unsupported_media_type', 'the Content-Type cannot be read')
    default:
      return findDatabaseTrouble(error)?.refusal ?? refuse('internal_server_error', 'unexpected error')
  }
}
