/**
 * Reads the body of a request, within bounds of bytes and time. Only reports have a body that is read (contract H9).
 */
import type { IncomingMessage } from 'node:http'

export type BodySource = Pick<IncomingMessage, 'on' | 'off' | 'headers' | 'readableEnded'>

/** `gone`: the peer closed the connection, and gets no response. */
export type Body =
  | { readonly kind: 'read'; readonly bytes: Buffer }
  | { readonly kind: 'too-large' | 'too-slow' | 'gone' }

/** Calls `take` once. A body that is too large by its Content-Length is not read. */
export function readBody(source: BodySource, maxBytes: number, timeoutMs: number, take: (body: Body) => void): void {
  if (Number(source.headers['content-length'] ?? 0) > maxBytes) {
    take({ kind: 'too-large' })
    return
  }
  if (source.readableEnded) {
    // without Content-Length there are no events
    take({ kind: 'read', bytes: Buffer.alloc(0) })
    return
  }
  const chunks: Buffer[] = []
  let bytes = 0
  const finish = (body: Body) => {
    clearTimeout(timer)
    source.off('data', add).off('end', end).off('close', close)
    take(body)
  }
  const add = (chunk: Buffer) => {
    bytes += chunk.length
    chunks.push(chunk)
    if (bytes > maxBytes) finish({ kind: 'too-large' })
  }
  const end = () => finish({ kind: 'read', bytes: Buffer.concat(chunks) })
  const close = () => finish({ kind: 'gone' })
  const timer = setTimeout(() => finish({ kind: 'too-slow' }), timeoutMs)
  source.on('data', add).on('end', end).on('close', close).on('error', ignore)
}

/** `close` follows. */
const ignore = () => undefined
