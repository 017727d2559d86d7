/**
 * The expected refusals of the guest side, in one table: each has a status, headers and a body (contract A7; the page
 * is docs/contract.md#notes-on-ec2). Its name is the reason in metrics and logs.
 */

/** `ordinary`: see `isOrdinary`. */
interface RefusalRow {
  readonly status: number
  readonly ordinary?: boolean
  readonly headers?: readonly string[]
}

/** Not by an import, which loads Node's HTTP client too: 70 ms of CPU time at each start. */
const { STATUS_CODES } = process.getBuiltinModule('node:http')

/** The statuses whose response to a GET has the XHTML page as its body. */
const WITH_PAGE = [400, 401, 404, 503]

const TABLE = {
  'malformed-target': { status: 400 },
  'malformed-request': { status: 400 },
  'headers-too-large': { status: 400 },
  'request-timeout': { status: 400 },
  'bad-token-ttl': { status: 400 },
  'bad-audience': { status: 400 },
  'bad-report': { status: 400, ordinary: true },
  'token-required': { status: 401 },
  'token-invalid': { status: 401 },
  'not-found': { status: 404, ordinary: true },
  'endpoint-disabled': { status: 403, ordinary: true },
  'ipv6-disabled': { status: 403, ordinary: true },
  forwarded: { status: 403 },
  'dated-token-path': { status: 403 },
  'method-not-allowed': { status: 405, ordinary: true, headers: ['Allow', 'GET, HEAD'] },
  'token-method': { status: 405, ordinary: true, headers: ['Allow', 'OPTIONS, PUT'] },
  'report-method': { status: 405, ordinary: true, headers: ['Allow', 'PUT'] },
  'phone-home-method': { status: 405, ordinary: true, headers: ['Allow', 'POST'] },
  'report-too-large': { status: 413, ordinary: true },
  'too-many-reports': { status: 429, headers: ['Retry-After', '60'] },
  'internal-error': { status: 500, ordinary: true },
  'unknown-peer': { status: 503 },
  'contested-address': { status: 503 },
  'unconfirmed-address': { status: 503 },
  'over-share': { status: 503 },
  'hop-limit-failed': { status: 503 },
  'not-signed': { status: 503 },
  'too-many-waiting': { status: 503 },
  'too-many-connections': { status: 503 },
} as const satisfies Record<string, RefusalRow>

export type RefusalReason = keyof typeof TABLE
/** Every refusal, for metrics and tests. */
export const REFUSALS = Object.keys(TABLE) as readonly RefusalReason[]

/**
 * Whether a refusal needs no warning, because it is part of normal operation, because the operator configured it, or
 * because it is logged elsewhere.
 */
export function isOrdinary(refusal: RefusalReason): boolean {
  const { ordinary = false }: RefusalRow = TABLE[refusal]
  return ordinary
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

function prepare({ status, headers = status === 503 ? ['Retry-After', '1'] : [] }: RefusalRow): RefusalResponse {
  const headersWithoutBody = [...headers, 'Content-Type', 'text/plain', 'Content-Length', '0']
  if (!WITH_PAGE.includes(status)) return { status, body: '', headers: headersWithoutBody, headersWithoutBody }
  const body = errorPage(status)
  const withBody = [...headers, 'Content-Type', 'text/html', 'Content-Length', String(body.length)]
  return { status, body, headers: withBody, headersWithoutBody }
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
