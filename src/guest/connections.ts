/**
 * Which connections are open, and does anything move on them?
 *
 * Node ends a connection that is idle, or whose request does not arrive in time; it lets one be whose other end never reads
 * its answers. Those are found here, by looking every few seconds: a timer for each connection would cost every request of every guest.
 */
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Share } from './share.ts'

/** An answer that nobody takes is given up after so long, in ms; up to LOOK_EVERY_MS later. */
const STALLED_MS = 20_000
/** How often to look, in ms. */
export const LOOK_EVERY_MS = 5_000

interface Seen { readonly share: Share, unsent: number, read: number, sinceMs: number, lastAnswer: ServerResponse | null | undefined }

/** The open connections of a listener. Times are milliseconds that only grow. */
export class Connections {
  readonly #open = new Map<Socket, Seen>()

  /** Takes a new connection into its share until it closes; gives the used part of that share, above 1 when it has too many. */
  add(socket: Socket, share: Share): number {
    this.#open.set(socket, { share, unsent: 0, read: 0, sinceMs: 0, lastAnswer: undefined })
    socket.once('close', () => {
      this.#open.delete(socket)
      share.closed()
    })
    return share.opened()
  }

  /** The last answer of a connection, which nothing that is said without a request may overtake; null once that is said, undefined before any. */
  lastAnswer(socket: Socket): ServerResponse | null | undefined {
    return this.#open.get(socket)?.lastAnswer
  }

  /** Notes the last answer of a connection. */
  answers(socket: Socket, answer: ServerResponse | null): void {
    const seen = this.#open.get(socket)
    if (seen !== undefined) seen.lastAnswer = answer
  }

  /** Resets every connection of a share; gives how many there were. */
  endAll(share: Share): number {
    const sockets = [...this.#open].filter(([, seen]) => seen.share === share)
    for (const [socket] of sockets) socket.resetAndDestroy()
    return sockets.length
  }

  /** Ends every connection whose answer was not taken; gives how many there were. */
  endStalled(nowMs: number): number {
    let ended = 0
    for (const [socket, seen] of this.#open) {
      const unsent = socket.writableLength
      if (unsent === 0 || unsent !== seen.unsent || socket.bytesRead !== seen.read) Object.assign(seen, { unsent, read: socket.bytesRead, sinceMs: nowMs })
      else if (nowMs - seen.sinceMs >= STALLED_MS) {
        socket.resetAndDestroy()
        ended += 1
      }
    }
    return ended
  }
}
