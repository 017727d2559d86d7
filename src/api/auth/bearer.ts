/** The check of an access token on every request to the API. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { refuse } from '../refusal.ts'
import { formatScopes } from './scopes.ts'
import type { AccessTokens, Identity } from './tokens.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Set by the check of the access token, before a route of /1.0 runs. */
    identity: Identity
  }
}

/** A refusal of a request without a valid access token: 401 with `WWW-Authenticate` (RFC 6750, 3). */
interface Unauthenticated { readonly kind: 'unauthenticated', readonly error: string, readonly headerError: string | undefined, readonly description: string }

const UNKNOWN: Unauthenticated = { kind: 'unauthenticated', error: 'invalid_token', headerError: 'invalid_token', description: 'the access token is not valid' }
/** The interface writes token_expired in the header; recordings of the service have expired_token in the body. */
const EXPIRED: Unauthenticated = { kind: 'unauthenticated', error: 'expired_token', headerError: 'token_expired', description: 'the access token has expired' }
/** Without a token the header has no error (RFC 6750, 3.1). */
const MISSING: Unauthenticated = { kind: 'unauthenticated', error: 'invalid_request', headerError: undefined, description: 'the request has no access token' }

/** Old clients and Libcloud write OAuth instead of Bearer. */
const HEADER = /^(?:bearer|oauth) +([A-Za-z0-9._~+/-]+=*) *$/i

/** Builds the check: a hook for all routes of the API. */
export function buildBearerCheck(tokens: AccessTokens): (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply | undefined> {
  return async (request, reply) => {
    const [, token] = HEADER.exec(request.headers.authorization ?? '') ?? []
    const check = token === undefined ? undefined : await tokens.check(token)
    if (check?.kind !== 'valid') return sendUnauthenticated(reply, check === undefined ? MISSING : check.kind === 'expired' ? EXPIRED : UNKNOWN)
    const { identity } = check
    request.identity = identity
    request.bodyOwner = identity.kind === 'client' ? identity.accountId : identity.userId
    void reply.header('X-Oauth-Scopes', formatScopes(identity.scopes))
    if (!identity.scopes.includes('infrastructure')) {
      void reply.header('WWW-Authenticate', 'Bearer error="insufficient_scope", scope="infrastructure"')
      return reply.refuse(refuse('insufficient_scope', 'the access token has no scope infrastructure'))
    }
    return undefined
  }
}

function sendUnauthenticated(reply: FastifyReply, { error, headerError, description }: Unauthenticated): FastifyReply {
  return reply.code(401).header('WWW-Authenticate', `Bearer realm="imds-api"${headerError === undefined ? '' : `, error="${headerError}"`}`)
    .send({ error, error_description: description, error_name: 'unauthorized', errors: [description] })
}
