/**
 * How a connection ends on which the other end may still be sending: a lingering close, as nginx has.
 *
 * A socket that is closed with unread bytes sends a reset, and a reset can take an answer with it that the other end has not read yet. So the
 * daemon closes its side first, then reads and discards what arrives, without parsing it, within bounds of time and bytes. Until then the
 * socket counts as a connection of its peer.
 */
import type { Socket } from 'node:net'

/** A connection lingers for so long at most, in ms: as long as a request may take to arrive. */
export const LINGER_MS = 10_000
/** It ends when nothing arrives for so long, in ms, */
export const LINGER_IDLE_MS = 1_000
/** and when more than so many bytes arrive. */
export const LINGER_BYTES = 8 * 2 ** 20
/** The other end has so long to take the last answer where nothing is read, in ms. */
const FLUSH_MS = 1_000

/** Takes the place of `destroySoon`, which Node calls after the last answer, on a connection that lingers. */
const lingering = () => { /* the bounds end it */ }

/** Whether a connection lingers. */
export function isLingering(socket: Socket): boolean {
  return socket.destroySoon === lingering
}

/**
 * Closes a connection once what is under way on it, and `text`, is sent, and reads on for at most `ms`, as long as `mayDiscard` agrees to each
 * number of bytes. Does nothing to one that lingers already.
 */
export function closeSoon(socket: Socket, text: string, ms: number, mayDiscard: (bytes: number) => boolean): void {
  if (isLingering(socket)) return
  socket.destroySoon = lingering
  destroyAfter(socket, ms)
  socket.setTimeout(LINGER_IDLE_MS, () => { socket.destroy() })
  let left = LINGER_BYTES
  const discard = () => {
    socket.removeAllListeners('data') // Node's HTTP parser; the new listener takes the socket from it
    socket.on('data', ({ length }) => {
      left -= length
      if (left < 0 || !mayDiscard(length)) socket.destroy()
    })
  }
  if (socket.isPaused()) socket.once('resume', discard).resume() // by Node's HTTP server: only it can start reading what it stopped
  else discard()
  if (socket.writable) socket.end(text, 'latin1')
}

/** Closes a connection once what is under way on it, and `text`, is sent, and reads nothing more, which may cost the other end the answer. */
export function closeUnread(socket: Socket, text: string): void {
  if (isLingering(socket)) return
  destroyAfter(socket, FLUSH_MS)
  if (socket.writable) socket.end(text, 'latin1')
  if (socket.writableFinished) socket.destroy()
  else socket.once('finish', () => { socket.destroy() })
}

function destroyAfter(socket: Socket, ms: number): void {
  const timer = setTimeout(() => { socket.destroy() }, ms)
  socket.on('error', () => { /* reset by the other end: there is nobody left to answer */ })
  socket.on('close', () => { clearTimeout(timer) })
}
