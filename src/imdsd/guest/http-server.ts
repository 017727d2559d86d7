/**
 * The HTTP server of a listener, which the connection guard protects. Fastify sees the target `/` for every request: the
 * tree resolves paths, and a second router costs a part of the rate.
 */
import Fastify, { type FastifyInstance } from 'fastify'
import { NO_SCHEMA_COMPILERS } from '../../runtime/http.ts'
import type { ConnectionGuard } from './connection-guard.ts'
import { isCounted } from './meter.ts'

const LIMITS = {
  /** AWS's JavaScript client waits until an idle connection closes (contract A5; docs/clients.md#aws-sdks). */
  keepAliveTimeout: 3_500, // Node adds a second of grace, and checks once a second
  /** A request, headers and body, must arrive in this time. */
  requestTimeout: 10_000,
  /** Request line and headers: the longest real ones have a tag key of 255 escaped characters. */
  maxHeaderSize: 16_384,
}

/** Builds the server, without hooks or routes of requests. */
export function buildHttpServer(guard: ConnectionGuard): FastifyInstance {
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
      noDelay: false, // each connection has it from the listening socket, without a system call of its own
    },
    clientErrorHandler: (error, socket) => guard.refuseUnreadable(error, socket),
  })
  server.addHook('onClose', (_server, done) => {
    guard.stop()
    done()
  })
  guard.start(server.server)
  server.server.once('listening', () => {
    const { _handle: listening } = server.server as { _handle?: { setNoDelay?: (on: boolean) => void } } // undocumented
    listening?.setNoDelay?.(true)
  })
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
