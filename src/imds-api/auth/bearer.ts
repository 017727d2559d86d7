/** The check of an access token on every request to the API. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { SAFE_METHODS } from '../http/audit.ts'
import { noteOwner } from '../http/connections.ts'
import { refuse, Refusal } from '../model/refusal.ts'
import { formatScopes } from '../model/scopes.ts'
import type {} from './caller.ts'
import type { AccessTokens, TokenCheck } from './tokens.ts'

/** Without a token the header has no error (RFC 6750, 3.1). */
const NO_TOKEN = unauthorized(
  'the request has no access token: get one at /token, and send it as Authorization: Bearer TOKEN',
  'invalid_request',
)
/** HTTP Basic, or another scheme. The scheme is not named: a token without a scheme would be in the response. */
const OTHER_SCHEME = unauthorized(
  'the scheme of the Authorization header must be Bearer: ' +
    'get an access token at /token with the id and secret of a client, and send it as Authorization: Bearer TOKEN',
  'invalid_request',
)
const UNKNOWN_TOKEN = unauthorized('the access token is not valid', 'invalid_token', 'invalid_token')
/**
 * The published document writes token_expired in the header; recordings of the service have expired_token in the body.
 */
const EXPIRED_TOKEN = unauthorized('the access token has expired', 'expired_token', 'token_expired')
const WRONG_SCOPE = new Refusal('insufficient_scope', ['the access token has no scope infrastructure'], {
  challenge: 'Bearer error="insufficient_scope", scope="infrastructure"',
})

const OTHER_NETWORK = refuse('forbidden', 'this API client may not be used from this address: see its allow_access')
const READ_ONLY = refuse('forbidden', 'this API client is read_only: it may send only GET and HEAD')

/** Old clients and Libcloud write OAuth instead of Bearer. */
const HEADER = /^(?:bearer|oauth) +([A-Za-z0-9._~+/-]+=*) *$/i

/** Builds the hook that authenticates all requests to the API. */
export function buildAuthentication(
  tokens: AccessTokens,
): (request: FastifyRequest, reply: FastifyReply) => Promise<void> {
  return async (request, reply) => {
    const [, token] = HEADER.exec(request.headers.authorization ?? '') ?? []
    if (token === undefined) throw refusalWithoutToken(request.headers.authorization)
    const check = await tokens.check(token, request.address)
    if (check.kind === 'valid') {
      const { tokenHolder: holder } = check
      request.caller = {
        id: holder.kind === 'client' ? holder.clientId : holder.userId,
        holder,
        check: async () => refuseToken(await tokens.check(token, request.address), request),
        lock: async (tx) => refuseToken(await tokens.lock(tx, token, holder), request),
      }
      request.owner = holder.kind === 'client' ? holder.accountId : holder.userId
      noteOwner(request.raw.socket, request.owner)
      void reply.header('X-Oauth-Scopes', formatScopes(holder.scopes))
    }
    refuseToken(check, request)
  }
}

/** A refusal of a request without a valid access token: 401 with `WWW-Authenticate` (RFC 6750, 3). */
function unauthorized(description: string, error: string, headerError?: string): Refusal {
  const challenge = `Bearer realm="imds-api"${headerError === undefined ? '' : `, error="${headerError}"`}`
  return new Refusal('unauthorized', [description], { challenge, oauthError: error })
}

function refusalWithoutToken(header = ''): Refusal {
  return header === '' || /^(?:bearer|oauth)(?: |$)/i.test(header) ? NO_TOKEN : OTHER_SCHEME
}

/** Refuses a token that is not valid, that has another scope, or whose client may not send this request. */
function refuseToken(check: TokenCheck, { method, address }: Pick<FastifyRequest, 'method' | 'address'>): void {
  if (check.kind !== 'valid') throw check.kind === 'expired' ? EXPIRED_TOKEN : UNKNOWN_TOKEN
  const { tokenHolder } = check
  if (!tokenHolder.scopes.includes('infrastructure')) throw WRONG_SCOPE
  if (tokenHolder.kind !== 'client') return
  if (!tokenHolder.limits.allows(address)) throw OTHER_NETWORK
  if (tokenHolder.limits.readOnly && !SAFE_METHODS.includes(method)) throw READ_ONLY
}
