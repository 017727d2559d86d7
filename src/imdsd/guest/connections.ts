/**
 * The open connections of a listener, and the current response of each.
 *
 * Node ends connections that are idle or whose request does not arrive in time. It does not end a connection whose peer
 * never reads its responses, or sends line breaks between requests, which its parser skips. A periodic check finds
 * these here, since a timer for each connection would slow down every request.
 *
 * The state of a connection is a property of its socket, and all states are in an array. A Map or a Set of sockets
 * makes garbage collection slower: the old tables of a Map that has grown keep closed connections alive (seen with
 * --trace-gc-nvp).
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { isLingering } from './linger.ts'
import { forgetUnread } from './reading.ts'
import type { Share } from './share.ts'

/**
 * The time after which a connection whose response is not read is ended, in ms. It may last CHECK_INTERVAL_MS longer.
 */
const STALLED_MS = 20_000
/**
 * The interval of the checks, in ms. During one interval, a flood of line breaks can delay other guests
 * (docs/performance.md, `flood`).
 */
export const CHECK_INTERVAL_MS = 500
/**
 * The bytes that a connection may send for each request: several times the longest head. Bodies are read by a
 * connection that lingers (linger.ts).
 */
const BYTES_PER_REQUEST = 65_536

const CONNECTION = Symbol('connection')

/** An open connection, and what the checks have seen of it. */
class Connection {
  readonly socket: Connected
  readonly share: Share
  /** The array of all connections. */
  readonly among: Connection[]
  /** The index in `among`. */
  at: number
  /** The instance to which its peer belongs, as of the last request. */
  owner: string | undefined
  requests = 0
  /** `requests`, the bytes read, and the bytes that the kernel had not taken, as of the last check. */
  requestsBefore = -1
  readBefore = 0
  unsentBefore = 0
  /** The last check that found a new request, a response that is not made, or one that the peer reads. */
  progressAtMs = 0
  currentResponse: ServerResponse | undefined = undefined
  isEnding = false

  constructor(socket: Connected, share: Share, owner: string | undefined, among: Connection[]) {
    this.socket = socket
    this.share = share
    this.owner = owner
    this.among = among
    this.at = among.length
  }
}
/** `_handle.writeQueueSize` is undocumented, and what Node's own timeouts look at. */
type Connected = Socket & { [CONNECTION]?: Connection; _handle?: { readonly writeQueueSize?: number } }

/** The open connections of a listener. Times are milliseconds of a monotonic clock. */
export class GuestConnections {
  readonly #open: Connection[] = []

  /** Counts a new connection in its share until it closes. Returns the used part of the limit: 1 = the limit. */
  add(socket: Connected, share: Share, owner: string | undefined): number {
    const connection = new Connection(socket, share, owner, this.#open)
    socket[CONNECTION] = connection
    this.#open.push(connection)
    socket.on('close', forget)
    return share.addConnection()
  }

  /** The share in which a connection is counted. */
  shareOf(socket: Connected): Share | undefined {
    return socket[CONNECTION]?.share
  }

  /** The response to the last request, also if it is sent. */
  currentResponse(socket: Connected): ServerResponse | undefined {
    return socket[CONNECTION]?.currentResponse
  }

  /** Whether no response may follow on a connection. */
  isEnding(socket: Connected): boolean {
    return socket[CONNECTION]?.isEnding === true
  }

  /** Notes a new request by its response. `owner`: the instance of its peer. */
  addRequest(socket: Connected, response: ServerResponse, owner: string | undefined): void {
    const connection = socket[CONNECTION]
    if (connection === undefined) return
    connection.currentResponse = response
    connection.owner = owner
    connection.isEnding = false
    connection.requests += 1
  }

  setOwner(socket: Connected, owner: string | undefined): void {
    const connection = socket[CONNECTION]
    if (connection !== undefined) connection.owner = owner
  }

  /** Notes that no response may follow on a connection. */
  beginEnd(socket: Connected): void {
    forgetUnread(socket)
    const connection = socket[CONNECTION]
    if (connection === undefined) return
    connection.currentResponse = undefined
    connection.isEnding = true
  }

  /** Resets the open connections of an instance for which `isLost` is true, and returns their number. */
  endOf(id: string, isLost: (socket: Socket) => boolean): number {
    const ended = this.#open.filter(({ owner, socket }) => owner === id && !socket.destroyed && isLost(socket))
    for (const { socket } of ended) socket.resetAndDestroy()
    return ended.length
  }

  /** Ends the connections that linger: their responses are sent. */
  endLingering(): void {
    for (const { socket } of this.#open) {
      if (isLingering(socket)) socket.destroy() // it leaves the array later, when it closes
    }
  }

  destroyAll(): void {
    for (const { socket } of this.#open) socket.destroy()
  }

  /**
   * Resets the connections that send more bytes than their requests can have, notes that in their shares, and resets
   * those without progress. Returns the numbers of both.
   */
  check(nowMs: number): { flooding: number; stalled: number } {
    const ended = { flooding: 0, stalled: 0 }
    for (const connection of this.#open) {
      const { socket, share, requests, requestsBefore, readBefore, unsentBefore, currentResponse } = connection
      if (socket.destroyed || isLingering(socket)) continue
      const unsent = socket._handle?.writeQueueSize ?? 0
      connection.requestsBefore = requests
      connection.readBefore = socket.bytesRead
      connection.unsentBefore = unsent
      const isHeld = currentResponse?.writableEnded === false // it may wait for a change (H1)
      const isSending = unsent > 0 ? unsent !== unsentBefore : isHeld || requests !== requestsBefore
      if (isSending) connection.progressAtMs = nowMs
      const isFlooding = socket.bytesRead - readBefore > (requests - requestsBefore + 1) * BYTES_PER_REQUEST
      if (isFlooding) share.noteFlood(nowMs)
      else if (nowMs - connection.progressAtMs < STALLED_MS) continue
      ended[isFlooding ? 'flooding' : 'stalled'] += 1
      socket.resetAndDestroy() // it leaves the array later, when it closes
    }
    return ended
  }
}

/** One listener for all sockets: a closure for each connection would be more garbage to collect. */
function forget(this: Connected): void {
  const { among, at, share } = this[CONNECTION]!
  const last = among.pop()!
  if (last.at !== at) {
    among[at] = last
    last.at = at
  }
  share.removeConnection()
}
