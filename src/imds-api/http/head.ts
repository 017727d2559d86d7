/** The check of the head of a request, before anything else is done for it. */
import type { onRequestHookHandler } from 'fastify'
import type { IncomingMessage } from 'node:http'
import { refuse, type Refusal } from '../model/refusal.ts'
import { REQUEST_ID } from './request-id.ts'

/** The most parameters of a query. They are counted before they are parsed, which would cost more than the request. */
export const MAX_PARAMETERS = 100
/** The most headers of a request: a thousand would cost as much as three plain requests. */
export const MAX_HEADERS = 100

/** Refuses a wrong Host, and too many parameters or headers. The response gets its X-Request-Id. */
export const checkHead: onRequestHookHandler = ({ raw, id }, reply, done) => {
  void reply.header(REQUEST_ID, id)
  done(refusalOf(raw))
}

/** Why a request is refused by its head; undefined: it is not. */
function refusalOf({ rawHeaders, httpVersion, url = '' }: IncomingMessage): Refusal | undefined {
  const hosts = rawHeaders.filter((name, i) => i % 2 === 0 && name.toLowerCase() === 'host').length
  if (hosts > 1) return refuse('bad_request', 'the header Host is given more than once')
  if (hosts === 0 && httpVersion === '1.1') return refuse('bad_request', 'the header Host is missing') // RFC 9112, 3.2
  if (url.split('&', MAX_PARAMETERS + 1).length > MAX_PARAMETERS)
    return refuse('bad_request', `the query must have at most ${MAX_PARAMETERS} parameters`)
  return rawHeaders.length > 2 * MAX_HEADERS
    ? refuse('header_fields_too_large', `a request must have at most ${MAX_HEADERS} headers`)
    : undefined
}

export const forbidCaching: onRequestHookHandler = (_request, reply, done) => {
  void reply.header('Cache-Control', 'no-store') // some responses have a secret
  done()
}
