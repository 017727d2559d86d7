/**
 * Which connections are open, and does anything move on them?
 *
 * Node ends a connection that is idle, or whose request does not arrive in time; it lets one be whose other end never reads
 * its answers. Those are found here, by looking every few seconds: a timer for each connection would cost every request of every guest.
 *
 * What is known of a connection hangs on its socket, and the open ones stand in an array. A Map or a Set of sockets would grow anew every few
 * thousand connections, and each table left behind in the old generation would keep alive what stood in it: of 1.9 MB that
 * connections allocate between two scavenges 0.3 MB were promoted, and a scavenge took three times as long (--trace-gc-nvp).
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { isLingering } from './linger.ts'
import type { Share } from './share.ts'

/** An answer that nobody takes is given up after so long, in ms; up to CHECK_INTERVAL_MS later. */
const STALLED_MS = 20_000
/** How often to look, in ms. */
export const CHECK_INTERVAL_MS = 5_000

const CONNECTION = Symbol('connection')

/** An open connection. `sinceMs` begins as NaN: a field that begins as a small integer and becomes none later would change the shape of all. */
class Connection {
  readonly socket: Socket
  readonly share: Share
  readonly among: Connection[]
  /** Its place in `among`. */
  at: number
  unsent = 0
  read = 0
  sinceMs = NaN
  lastAnswer: ServerResponse | null | undefined = undefined

  constructor(socket: Socket, share: Share, among: Connection[]) {
    this.socket = socket
    this.share = share
    this.among = among
    this.at = among.length
  }
}
type Connected = Socket & { [CONNECTION]?: Connection }

/** The open connections of a listener. Times are milliseconds that only grow. */
export class Connections {
  readonly #open: Connection[] = []

  /** Takes a new connection into its share until it closes; gives the used part of that share, above 1 when it has too many. */
  add(socket: Connected, share: Share): number {
    const connection = new Connection(socket, share, this.#open)
    socket[CONNECTION] = connection
    this.#open.push(connection)
    socket.on('close', forget)
    return share.opened()
  }

  /** The share that a connection counts in. */
  shareOf(socket: Connected): Share | undefined {
    return socket[CONNECTION]?.share
  }

  /** The last answer of a connection that is still under way, which nothing that is said without a request may overtake; null once that is said. */
  lastAnswer(socket: Connected): ServerResponse | null | undefined {
    return socket[CONNECTION]?.lastAnswer
  }

  /** Notes the last answer of a connection. */
  answers(socket: Connected, answer: ServerResponse | null): void {
    const connection = socket[CONNECTION]
    if (connection !== undefined) connection.lastAnswer = answer
  }

  /** Notes that an answer is sent, where that is known at once. Kept until the next one, each would outlive a collection. */
  sent(socket: Connected, answer: ServerResponse): void {
    const connection = socket[CONNECTION]
    if (connection?.lastAnswer === answer) connection.lastAnswer = undefined
  }

  /** Resets every connection of a share that is not ended yet; gives how many there were. */
  endAll(share: Share): number {
    const ended = this.#open.filter((connection) => connection.share === share && !connection.socket.destroyed)
    for (const { socket } of ended) socket.resetAndDestroy()
    return ended.length
  }

  /** Ends every connection that lingers: its answer is sent. */
  endLingering(): void {
    for (const { socket } of this.#open) {
      if (isLingering(socket)) socket.destroy() // closes later: nothing leaves the array here
    }
  }

  /** Ends every connection. */
  destroyAll(): void {
    for (const { socket } of this.#open) socket.destroy()
  }

  /** Ends every connection whose answer was not taken; gives how many there were. */
  endStalled(nowMs: number): number {
    let ended = 0
    for (const connection of this.#open) {
      const { socket, unsent } = connection
      if (socket.writableLength === 0 || socket.writableLength !== unsent || socket.bytesRead !== connection.read) {
        connection.unsent = socket.writableLength
        connection.read = socket.bytesRead
        connection.sinceMs = nowMs
      } else if (nowMs - connection.sinceMs >= STALLED_MS) {
        socket.resetAndDestroy() // closes later: nothing leaves the array here
        ended += 1
      }
    }
    return ended
  }
}

/** One function for all connections, called on the socket: a closure for each would be one more thing to collect. */
function forget(this: Connected): void {
  const { among, at, share } = this[CONNECTION]!
  const last = among.pop()!
  if (last.at !== at) {
    among[at] = last
    last.at = at
  }
  share.closed()
}
