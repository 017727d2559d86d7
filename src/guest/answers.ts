/**
 * What is written back?
 *
 * The only writer of status and body on the guest side. A refusal is a value; this table turns it into a status, a body and the
 * reason that metrics and logs name (contract A7; the page is reference/imds.md 3.1). Every answer has its exact length.
 */
import { STATUS_CODES, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Content } from '../metadata/tree.ts'

interface RefusalRow { readonly status: number, readonly page: boolean, readonly headers: readonly string[] }

const RETRY_AFTER = ['Retry-After', '1']

const TABLE = {
  'malformed-target': { status: 400, page: true, headers: [] },
  'malformed-request': { status: 400, page: true, headers: [] },
  'headers-too-large': { status: 400, page: true, headers: [] },
  'request-timeout': { status: 400, page: true, headers: [] },
  'not-found': { status: 404, page: true, headers: [] },
  'endpoint-disabled': { status: 403, page: false, headers: [] },
  'ipv6-disabled': { status: 403, page: false, headers: [] },
  'method-not-allowed': { status: 405, page: false, headers: ['Allow', 'GET, HEAD'] },
  'internal-error': { status: 500, page: false, headers: [] },
  'unknown-peer': { status: 503, page: true, headers: RETRY_AFTER },
  'contested-address': { status: 503, page: true, headers: RETRY_AFTER },
} as const satisfies Record<string, RefusalRow>

/** Why a guest is not given what it asked for. */
export type Refusal = keyof typeof TABLE
/** Every refusal, for metrics and tests. */
export const REFUSALS = Object.keys(TABLE) as readonly Refusal[]

/** The status of a refusal. */
export function statusOf(refusal: Refusal): number {
  return TABLE[refusal].status
}

interface Prepared { readonly status: number, readonly headers: readonly string[], readonly body: string, readonly headersWithoutBody: readonly string[] }

const PREPARED = Object.fromEntries(REFUSALS.map((refusal) => [refusal, prepare(TABLE[refusal])])) as Record<Refusal, Prepared>

/** Answers 200. A HEAD gets the headers of the GET. */
export function sendContent(response: ServerResponse, { headers, body }: Content): void {
  response.writeHead(200, headers as string[])
  response.end(body, 'latin1')
}

/** Answers what the table says of a refusal. A HEAD gets no body and a length of 0. */
export function sendRefusal(response: ServerResponse, refusal: Refusal, isHead: boolean): void {
  const { status, headers, body, headersWithoutBody } = PREPARED[refusal]
  response.writeHead(status, (isHead ? headersWithoutBody : headers) as string[])
  response.end(isHead ? '' : body, 'latin1')
}

/** The other end is given so long to take a last answer and close, in ms. */
const LINGER_MS = 1_000

/** Answers on a bare socket, where no request could be read, and closes it, with a bound on how long that takes. */
export function sendRefusalRaw(socket: Socket, refusal: Refusal): void {
  socket.on('error', () => { /* reset by the other end: there is nobody left to answer */ })
  if (!socket.writable) {
    socket.destroy()
    return
  }
  const timer = setTimeout(() => { socket.destroy() }, LINGER_MS)
  socket.on('close', () => { clearTimeout(timer) })
  socket.resume() // unread bytes would turn the close into a reset that takes the answer with it
  const { status, headers, body } = PREPARED[refusal]
  const lines = [`HTTP/1.1 ${String(status)} ${STATUS_CODES[status] ?? ''}`]
  for (let i = 0; i < headers.length; i += 2) lines.push(`${headers[i] ?? ''}: ${headers[i + 1] ?? ''}`)
  lines.push(`Date: ${new Date().toUTCString()}`, 'Connection: close')
  socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`, 'latin1')
}

function prepare({ status, page, headers }: RefusalRow): Prepared {
  const withoutBody = [...headers, 'Content-Type', 'text/plain', 'Content-Length', '0']
  const body = page ? errorPage(status) : ''
  return { status, body, headers: page ? [...headers, 'Content-Type', 'text/html', 'Content-Length', String(body.length)] : withoutBody, headersWithoutBody: withoutBody }
}

function errorPage(status: number): string {
  const title = `${String(status)} - ${STATUS_CODES[status] ?? ''}`
  return `<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
\t\t "http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>${title}</title>
 </head>
 <body>
  <h1>${title}</h1>
 </body>
</html>
`
}
