/**
 * The expected refusals of the guest side, in one table: each has a status, headers and a body (contract A7; the page
 * is docs/contract.md#notes-on-ec2). Its name is the reason in metrics and logs.
 */

/** `page`: the response to a GET has the XHTML page as its body. `ordinary`: see `isOrdinary`. */
interface RefusalRow {
  readonly status: number
  readonly page: boolean
  readonly ordinary: boolean
  readonly headers: readonly string[]
}

/** Not by an import, which loads Node's HTTP client too: 70 ms of CPU time at each start. */
const { STATUS_CODES } = process.getBuiltinModule('node:http')

const RETRY_AFTER = ['Retry-After', '1']

const TABLE = {
  'malformed-target': { status: 400, page: true, ordinary: false, headers: [] },
  'malformed-request': { status: 400, page: true, ordinary: false, headers: [] },
  'headers-too-large': { status: 400, page: true, ordinary: false, headers: [] },
  'request-timeout': { status: 400, page: true, ordinary: false, headers: [] },
  'bad-token-ttl': { status: 400, page: true, ordinary: false, headers: [] },
  'bad-audience': { status: 400, page: true, ordinary: false, headers: [] },
  'bad-report': { status: 400, page: true, ordinary: true, headers: [] },
  'token-required': { status: 401, page: true, ordinary: false, headers: [] },
  'token-invalid': { status: 401, page: true, ordinary: false, headers: [] },
  'not-found': { status: 404, page: true, ordinary: true, headers: [] },
  'endpoint-disabled': { status: 403, page: false, ordinary: true, headers: [] },
  'ipv6-disabled': { status: 403, page: false, ordinary: true, headers: [] },
  forwarded: { status: 403, page: false, ordinary: false, headers: [] },
  'dated-token-path': { status: 403, page: false, ordinary: false, headers: [] },
  'method-not-allowed': { status: 405, page: false, ordinary: true, headers: ['Allow', 'GET, HEAD'] },
  'token-method': { status: 405, page: false, ordinary: true, headers: ['Allow', 'OPTIONS, PUT'] },
  'report-method': { status: 405, page: false, ordinary: true, headers: ['Allow', 'PUT'] },
  'phone-home-method': { status: 405, page: false, ordinary: true, headers: ['Allow', 'POST'] },
  'report-too-large': { status: 413, page: false, ordinary: true, headers: [] },
  'too-many-reports': { status: 429, page: false, ordinary: false, headers: ['Retry-After', '60'] },
  'internal-error': { status: 500, page: false, ordinary: true, headers: [] },
  'unknown-peer': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'contested-address': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'unconfirmed-address': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'over-share': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'hop-limit-failed': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'not-signed': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'too-many-waiting': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
  'too-many-connections': { status: 503, page: true, ordinary: false, headers: RETRY_AFTER },
} as const satisfies Record<string, RefusalRow>

export type RefusalReason = keyof typeof TABLE
/** Every refusal, for metrics and tests. */
export const REFUSALS = Object.keys(TABLE) as readonly RefusalReason[]

/**
 * Whether a refusal needs no warning, because it is part of normal operation, because the operator configured it, or
 * because it is logged elsewhere.
 */
export function isOrdinary(refusal: RefusalReason): boolean {
  return TABLE[refusal].ordinary
}

export function statusOf(refusal: RefusalReason): number {
  return TABLE[refusal].status
}

/** The response to a refused request. Header lists alternate names and values. */
export interface RefusalResponse {
  readonly status: number
  readonly headers: readonly string[]
  readonly body: string
  readonly headersWithoutBody: readonly string[]
}

const RESPONSES = Object.fromEntries(REFUSALS.map((refusal) => [refusal, prepare(TABLE[refusal])])) as Record<
  RefusalReason,
  RefusalResponse
>

export function responseOf(refusal: RefusalReason): RefusalResponse {
  return RESPONSES[refusal]
}

/**
 * The response as text for a connection on which no request could be read. It must be the last one of the connection.
 */
export function refusalText(refusal: RefusalReason): string {
  const { status, headers, body } = RESPONSES[refusal]
  const lines = [`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}`]
  for (let i = 0; i < headers.length; i += 2) lines.push(`${headers[i] ?? ''}: ${headers[i + 1] ?? ''}`)
  lines.push(`Date: ${new Date().toUTCString()}`, 'Connection: close')
  return `${lines.join('\r\n')}\r\n\r\n${body}`
}

function prepare({ status, page, headers }: RefusalRow): RefusalResponse {
  const withoutBody = [...headers, 'Content-Type', 'text/plain', 'Content-Length', '0']
  const body = page ? errorPage(status) : ''
  return {
    status,
    body,
    headers: page ? [...headers, 'Content-Type', 'text/html', 'Content-Length', String(body.length)] : withoutBody,
    headersWithoutBody: withoutBody,
  }
}

function errorPage(status: number): string {
  const title = `${status} - ${STATUS_CODES[status] ?? ''}`
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
