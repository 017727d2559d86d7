/**
 * Lingering close, as in nginx: ends a connection while its peer may still be sending.
 *
 * Closing a socket with unread bytes sends a reset, which can destroy a response that the peer has not read yet. So the
 * daemon closes its own side first, then reads and discards what arrives, without parsing it, within bounds of time and
 * bytes. Meanwhile the socket counts as a connection of its peer.
 */
import { Socket } from 'node:net'
import { nextTick } from 'node:process'

/** The longest time that a connection lingers, in ms: as long as a request may take to arrive. */
export const LINGER_MS = 10_000
/** It ends when nothing arrives for this time, in ms. */
export const LINGER_IDLE_MS = 1_000
/** It ends when more bytes than these arrive. */
export const MAX_LINGER_BYTES = 8 * 2 ** 20

/** Replaces `destroySoon`, which Node calls after the last response, on a connection that lingers. */
const lingering = () => undefined // the bounds end the connection

const destroy = (socket: Socket) => socket.destroy()

/**
 * The `destroySoon` of a connection that does not linger. Closing it sends the FIN too, so this leaves out the shutdown of
 * Node's own: a system call, and the end of a stream.
 */
export function closeFlushed(this: Socket): void {
  // in the next tick: Node calls this before it empties its list of writes, and would make an error for each of them
  if (this.writableLength === 0) nextTick(destroy, this)
  else Socket.prototype.destroySoon.call(this)
}

/** Whether a connection lingers. */
export function isLingering(socket: Socket): boolean {
  return socket.destroySoon === lingering
}

/**
 * Closes a connection after its pending output and `text`. Reads and discards for at most `ms`, and only as long as
 * `discard`, called with the number of bytes of each chunk, allows it. Does nothing to a connection that lingers
 * already.
 */
export function closeSoon(socket: Socket, text: string, ms: number, discard: (bytes: number) => boolean): void {
  if (isLingering(socket)) return
  socket.destroySoon = lingering
  const timer = setTimeout(destroy, ms, socket)
  socket.on('error', () => undefined) // reset by the peer
  socket.on('close', () => clearTimeout(timer))
  socket.setTimeout(LINGER_IDLE_MS, () => socket.destroy())
  let left = MAX_LINGER_BYTES
  const startDiscarding = () => {
    socket.removeAllListeners('data') // the listener of Node's HTTP parser
    socket.on('data', ({ length }) => {
      left -= length
      if (left < 0 || !discard(length)) socket.destroy()
    })
  }
  if (socket.isPaused()) socket.once('resume', startDiscarding).resume() // only Node's HTTP server can resume what it paused
  else startDiscarding()
  if (socket.writable) socket.end(text, 'latin1')
}

/**
 * Closes a connection after its pending output and `text`, without reading any more: the peer may lose the response.
 */
export function closeUnread(socket: Socket, text: string): void {
  if (isLingering(socket)) return
  if (socket.writable) socket.end(text, 'latin1')
  Socket.prototype.destroySoon.call(socket)
}
