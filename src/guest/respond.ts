/**
 * What is written back?
 *
 * The only writer of status and body on the guest side. A refusal is a value; this table turns it into a status, a body and the
 * reason that metrics and logs name (contract A7; the page is docs/ec2.md#error-page). Every answer has its exact length.
 */
import type { ServerResponse } from 'node:http'
import type { Content } from '../metadata/tree.ts'

/** `page`: a GET gets the XHTML page. `ordinary`: no news to an operator. */
interface RefusalRow { readonly status: number, readonly page: boolean, readonly ordinary: boolean, readonly headers: readonly string[] }

/** Not node:http's STATUS_CODES: whoever imports a value from there starts 40 ms later, since Node then loads its client too. */
const REASONS: Readonly<Record<number, string>> = {
  400: 'Bad Request', 401: 'Unauthorized', 403: 'Forbidden', 404: 'Not Found', 405: 'Method Not Allowed', 500: 'Internal Server Error', 503: 'Service Unavailable',
}

const RETRY_AFTER = ['Retry-After', '1']

const TABLE = {
  'malformed-target': { status: 400, page: true, ordinary: false, headers: [] },
  'malformed-request': { status: 400, page: true, ordinary: false, headers: [] },
  'headers-too-large': { status: 400, page: true, ordinary: false, headers: [] },
  'request-timeout': { status: 400, page: true, ordinary: false, headers: [] },
  'bad-token-ttl': { status: 400, page: true, ordinary: false, headers: [] },
  'token-required': { status: 401, page: true, ordinary: false, headers: [] },
  'token-invalid': { status: 401, page: true, ordinary: false, headers: [] },
  'not-found': { status: 404, page: true, ordinary: true, headers: [] },
  'endpoint-disabled': { status: 403, page: false, ordinary: true, headers: [] },
  'ipv6-disabled': { status: 403, page: false, ordinary: true, headers: [] },
  forwarded: { status: 403, page: false, ordinary: false, headers: [] },
  'dated-token-path': { status: 403, page: false, ordinary: false, headers: [] },
  'method-not-allowed': { status: 405, page: false, ordinary: true, headers: ['Allow', 'GET, HEAD'] },
  'token-method': { status: 405, page: false, ordinary: true, headers: ['Allow', 'OPTIONS, PUT'] },
  'internal-error': { status: 500, page: false, ordinary: true, headers: [] },
  'unknown-peer': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'contested-address': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'over-share': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'hop-limit-failed': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'too-many-connections': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
} as const satisfies Record<string, RefusalRow>

/** Why a guest is not given what it asked for. */
export type Refusal = keyof typeof TABLE
/** Every refusal, for metrics and tests. */
export const REFUSALS = Object.keys(TABLE) as readonly Refusal[]

/** Whether it is no news to an operator: every guest meets it each day, it was asked for, or it was told already. */
export function isOrdinary(refusal: Refusal): boolean {
  return TABLE[refusal].ordinary
}

/** The status of a refusal. */
export function statusOf(refusal: Refusal): number {
  return TABLE[refusal].status
}

interface Prepared { readonly status: number, readonly headers: readonly string[], readonly body: string, readonly headersWithoutBody: readonly string[] }

const PREPARED = Object.fromEntries(REFUSALS.map((refusal) => [refusal, prepare(TABLE[refusal])])) as Record<Refusal, Prepared>

/** The header that says how many seconds a session token still has, or is asked to have (EC2's name). */
export const TTL_HEADER = 'X-aws-ec2-metadata-token-ttl-seconds'

/** Answers 200. A HEAD gets the headers of the GET. `ttlSeconds`: what the request's token still has; null where it brought none. */
export function sendContent(response: ServerResponse, { headers, body }: Content, ttlSeconds: number | null): void {
  response.writeHead(200, withTtl(headers, ttlSeconds) as string[])
  response.end(body, 'latin1')
}

/**
 * Answers what the table says of a refusal. Only a GET gets the page: it has a reader, and shell scripts take whatever a PUT answers for
 * a token.
 */
export function sendRefusal(response: ServerResponse, refusal: Refusal, isGet: boolean, ttlSeconds: number | null): void {
  const { status, headers, body, headersWithoutBody } = PREPARED[refusal]
  response.writeHead(status, withTtl(isGet ? headers : headersWithoutBody, ttlSeconds) as string[])
  response.end(isGet ? body : '', 'latin1')
}

function withTtl(headers: readonly string[], ttlSeconds: number | null): readonly string[] {
  return ttlSeconds === null ? headers : [...headers, TTL_HEADER, String(ttlSeconds)]
}

/** A refusal for a bare socket, where no request could be read. Nothing may follow it on the connection. */
export function refusalText(refusal: Refusal): string {
  const { status, headers, body } = PREPARED[refusal]
  const lines = [`HTTP/1.1 ${String(status)} ${REASONS[status] ?? ''}`]
  for (let i = 0; i < headers.length; i += 2) lines.push(`${headers[i] ?? ''}: ${headers[i + 1] ?? ''}`)
  lines.push(`Date: ${new Date().toUTCString()}`, 'Connection: close')
  return `${lines.join('\r\n')}\r\n\r\n${body}`
}

function prepare({ status, page, headers }: RefusalRow): Prepared {
  const withoutBody = [...headers, 'Content-Type', 'text/plain', 'Content-Length', '0']
  const body = page ? errorPage(status) : ''
  return { status, body, headers: page ? [...headers, 'Content-Type', 'text/html', 'Content-Length', String(body.length)] : withoutBody, headersWithoutBody: withoutBody }
}

function errorPage(status: number): string {
  const title = `${String(status)} - ${REASONS[status] ?? ''}`
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
