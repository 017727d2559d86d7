/**
 * Stops reading from a connection while a response is pending (contract A9): what is pipelined behind it costs at most
 * one read of 64 KiB and one head, and is answered afterwards, in order.
 *
 * The connection is still read until the next request begins, so that the end of its peer is noticed. The head of that
 * request and the unparsed rest of its read are kept until the pending response has been sent.
 *
 * The rest is undocumented: Node itself pauses its parser only between two reads. `parser.onIncoming` is Node's function
 * for a request whose head was parsed; its return value goes to llhttp, for which HPE_PAUSED stops the parser there. Node
 * then reports a parse error with the unparsed bytes. test/imdsd/reading.test.ts fails if a version of Node differs.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

const HPE_PAUSED = 21
/** Not `Buffer.alloc(0)`: its address is null, which the parser takes for the end of the connection. */
const NOTHING = Buffer.alloc(1).subarray(1)

const PENDING = Symbol('pending')

type OnIncoming = (request: IncomingMessage, keepAlive: boolean) => number

/** `next`: the head of the request behind. `rest`: what was read behind that head. */
interface Pending {
  response: ServerResponse
  readonly onIncoming: OnIncoming
  next: { readonly request: IncomingMessage; readonly keepAlive: boolean } | undefined
  rest: Buffer
}

interface Parser {
  readonly socket: HttpSocket
  onIncoming: OnIncoming
  resume(): void
}

/** A socket of an HTTP server. Without a parser it is one of a test, or no longer HTTP. */
type HttpSocket = Socket & { [PENDING]?: Pending | undefined; parser?: Parser; _paused?: boolean }

/** Reads no further request from a connection until `response`, the last one of it, has been sent. */
export function stopReading(socket: HttpSocket, response: ServerResponse): void {
  const { parser } = socket
  if (!parser) return // Node's null
  const pending = socket[PENDING]
  if (pending?.response === response) return
  if (pending !== undefined) pending.response = response
  else {
    socket[PENDING] = { response, onIncoming: parser.onIncoming, next: undefined, rest: NOTHING }
    parser.onIncoming = keepNext
  }
  response.once('finish', readOn)
}

/** Forgets what was read behind the last response of a connection. */
export function forgetUnread(socket: HttpSocket): void {
  socket[PENDING] = undefined
  socket.off('resume', pauseAgain)
}

/**
 * Whether an error of Node's is only due to a connection that is not read: its parser has stopped, or a request takes
 * long to arrive.
 */
export function isDueToPause(error: NodeJS.ErrnoException, socket: HttpSocket): boolean {
  const pending = socket[PENDING]
  if (pending?.next === undefined) return false
  const { code, rawPacket, bytesParsed = 0 } = error as { code?: string; rawPacket?: Buffer; bytesParsed?: number }
  if (code === 'HPE_PAUSED' && rawPacket !== undefined && bytesParsed < rawPacket.length)
    pending.rest = rawPacket.subarray(bytesParsed)
  return code === 'HPE_PAUSED' || code === 'ERR_HTTP_REQUEST_TIMEOUT'
}

/** Replaces `onIncoming`. */
function keepNext(this: Parser, request: IncomingMessage & { upgrade?: boolean }, keepAlive: boolean): number {
  const { socket } = this
  request.upgrade &&= request.method === 'CONNECT' // as Node does, which would take others for an upgrade too
  socket[PENDING]!.next = { request, keepAlive }
  socket.pause()
  socket.on('resume', pauseAgain)
  return HPE_PAUSED
}

/**
 * Node resumes a socket when an earlier response has been sent, in a later turn, and begins to read then. `pause` does
 * nothing if the stream was paused meanwhile; Node's listener to the event stops the reading.
 */
function pauseAgain(this: Socket): void {
  this.pause()
  this.emit('pause')
}

/** Listens to the end of the pending response. */
function readOn(this: ServerResponse): void {
  const socket: HttpSocket = this.req.socket
  const pending = socket[PENDING]
  if (pending?.response !== this) return
  forgetUnread(socket)
  if (!isOpen(socket)) return
  socket.parser.onIncoming = pending.onIncoming
  if (pending.next === undefined) return
  pending.onIncoming(pending.next.request, pending.next.keepAlive)
  if (!isOpen(socket)) return
  socket._paused = false
  socket.parser.resume()
  socket.emit('data', pending.rest) // for Node's parser
  if (socket[PENDING]?.next === undefined) socket.resume()
}

function isOpen(socket: HttpSocket): socket is HttpSocket & { parser: Parser } {
  return !socket.destroyed && Boolean(socket.parser)
}
