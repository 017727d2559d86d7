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
const TWO_LENGTHS = refuse(
  'bad_request',
  'the request has the headers Content-Length and Transfer-Encoding: send one of them',
)
const LINE_END = refuse('bad_request', 'a line of the request does not end with CR LF')

/** The refusals of requests that Node could not read, by Node's error code. Any other code is a malformed request. */
const UNREADABLE: Readonly<Record<string, Refusal<UnreadableReason>>> = {
  ERR_HTTP_REQUEST_TIMEOUT: refuse('request_timeout', 'the request did not arrive in time'),
  HPE_HEADER_OVERFLOW: refuse('header_fields_too_large', 'the headers are too large'),
  HPE_CHUNK_EXTENSIONS_OVERFLOW: refuse('payload_too_large', 'the chunk extensions of the body are too large'),
  HPE_INVALID_CONTENT_LENGTH: refuse('bad_request', 'the header Content-Length is not a number of bytes'),
  HPE_UNEXPECTED_CONTENT_LENGTH: refuse('bad_request', 'the header Content-Length is given more than once'),
  HPE_INVALID_TRANSFER_ENCODING: refuse('bad_request', 'the header Transfer-Encoding is not chunked'),
  HPE_INVALID_CHUNK_SIZE: refuse(
    'bad_request',
    'the size of a chunk of the body is not a hexadecimal number, or too large',
  ),
  HPE_STRICT: refuse('bad_request', 'a chunk of the body does not have the size that it gives'),
  HPE_INVALID_HEADER_TOKEN: refuse('bad_request', 'a header has a character that it must not have'),
  HPE_INVALID_URL: refuse('bad_request', 'the path has a character that must be escaped, or does not begin with /'),
  HPE_CR_EXPECTED: LINE_END,
  HPE_LF_EXPECTED: LINE_END,
}

/**
 * Refuses a request that Node cannot read, and closes the connection. If a response has begun on it, nothing is sent,
 * because it would become part of that response. Returns the reason; undefined: nothing was sent.
 */
export function refuseUnreadable(
  { code, reason = '' }: NodeJS.ErrnoException & { readonly reason?: string },
  socket: Socket,
  requestId: string,
): UnreadableReason | undefined {
  const refusal = reason.includes("can't be present with") ? TWO_LENGTHS : (UNREADABLE[code ?? ''] ?? NOT_HTTP)
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
