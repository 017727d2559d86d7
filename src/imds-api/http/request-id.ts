/**
 * Request ids: the response, its error, and the log and audit lines of a request have the same one. A client may send
 * one in `X-Request-Id`, so it proves nothing about who has sent the request.
 */
import { randomUUID } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'

/** The header of requests and responses. */
export const REQUEST_ID = 'X-Request-Id'
/** What a client may send: it becomes part of lines of logs, so it is short and has no spaces, quotes or controls. */
export const REQUEST_ID_PATTERN = '^[A-Za-z0-9._~:/+=@-]{1,128}$'

const GIVEN = new RegExp(REQUEST_ID_PATTERN)

/** The id that a request has, or a new one if it has none that can be used. */
export function requestIdOf({ headers }: { readonly headers: IncomingHttpHeaders }): string {
  const given = headers['x-request-id']
  return typeof given === 'string' && GIVEN.test(given) ? given : randomUUID()
}
