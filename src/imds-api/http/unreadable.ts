/**
 * Refuses requests that reach no route: those that Node's parser rejects or that arrive too late, and CONNECT. Closes
 * their connections.
 */
import { STATUS_CODES, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { REQUEST_ID, requestIdOf } from './request-id.ts'
import { bodyOf, refuse, statusOf, type RefusalName, type Refusal } from '../model/refusal.ts'

/** Why a request that Node cannot read is refused. */
export const UNREADABLE_REASONS = [
  'bad_request',
  'request_timeout',
  'header_fields_too_large',
  'payload_too_large',
] as const satisfies readonly RefusalName[]
export type UnreadableReason = (typeof UNREADABLE_REASONS)[number]

/** The refusal of a malformed request, and of one in another version of HTTP. */
export const NOT_HTTP = refuse('bad_request', 'the request is not HTTP/1.1')

/** The refusals of requests that Node could not read, by Node's error code. Any other code is a malformed request. */
const UNREADABLE: Readonly<Record<string, Refusal<UnreadableReason>>> = {
  ERR_HTTP_REQUEST_TIMEOUT: refuse('request_timeout', 'the request did not arrive in time'),
  HPE_HEADER_OVERFLOW: refuse('header_fields_too_large', 'the headers are too large'),
  HPE_CHUNK_EXTENSIONS_OVERFLOW: refuse('payload_too_large', 'the chunk extensions of the body are too large'),
}

/**
 * Refuses a request that Node cannot read, and closes the connection. If a response has begun on it, nothing is sent,
 * because it would become part of that response. Returns the reason; undefined: nothing was sent. `reason`: that of
 * Node's parser, such as "Invalid character in chunk size".
 */
export function refuseUnreadable(
  { code, reason }: NodeJS.ErrnoException & { readonly reason?: string },
  socket: Socket,
  requestId: string,
): UnreadableReason | undefined {
  const malformed = reason === undefined ? NOT_HTTP : refuse('bad_request', `the request is not HTTP/1.1: ${reason}`)
  const refusal = UNREADABLE[code ?? ''] ?? malformed
  if (code !== 'ECONNRESET' && sendAndClose(socket, refusal, requestId)) return refusal.name
  socket.destroy()
  return undefined
}

/** Refuses CONNECT, for which Node has no parser on the connection any more. */
export function refuseConnect(request: IncomingMessage): void {
  const { socket } = request
  socket.on('error', () => undefined) // reset by the peer; Node has removed its own listener
  const refusal = refuse('method_not_allowed', 'CONNECT is not a method of this API')
  if (!sendAndClose(socket, refusal, requestIdOf(request), ['Allow:'])) socket.destroy()
}

/** Sends a refusal and closes the connection. False: it cannot be sent. */
function sendAndClose(socket: Socket, refusal: Refusal, requestId: string, headers: readonly string[] = []): boolean {
  // as Node's own handler does
  const begun = (socket as { readonly _httpMessage?: ServerResponse })._httpMessage?.headersSent === true
  if (!socket.writable || begun) return false
  const [status, body] = [statusOf(refusal.name), JSON.stringify(bodyOf(refusal, requestId))]
  socket.end(
    [
      `HTTP/1.1 ${status} ${STATUS_CODES[status]!}`,
      'Content-Type: application/json; charset=utf-8',
      `Content-Length: ${Buffer.byteLength(body)}`,
      `${REQUEST_ID}: ${requestId}`,
      ...headers,
      'Connection: close',
      '',
      body,
    ].join('\r\n'),
    () => socket.destroy(),
  )
  return true
}
