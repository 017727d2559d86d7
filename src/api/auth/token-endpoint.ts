/**
 * POST /token (RFC 6749): a client's id and secret for an access token. The only grant of this version is client_credentials.
 *
 * The body is a form or JSON. Failures have OAuth's `error`, and the `error_name` and `errors` of this API beside it.
 */
import type { FastifyError, FastifyReply } from 'fastify'
import type { Kysely } from 'kysely'
import Type from 'typebox'
import type { Tables } from '../database/tables.ts'
import type { ApiServer } from '../server.ts'
import { parseBasic } from './basic.ts'
import { formatScopes, grantScopes, SCOPES_OF_GROUP } from './scopes.ts'
import { isSecret } from './secrets.ts'
import type { AccessTokens } from './tokens.ts'

/** What the endpoint needs. */
export interface TokenEndpointParts { readonly tables: Kysely<Tables>, readonly tokens: AccessTokens, readonly seconds: number }

type OAuthError = 'invalid_request' | 'invalid_client' | 'unsupported_grant_type' | 'unauthorized_client' | 'invalid_scope'

/** Grants of OAuth that API clients must not use: they belong to applications. */
const GRANTS_OF_APPLICATIONS = ['password', 'refresh_token', 'authorization_code']

const TokenResponse = Type.Object({ access_token: Type.String(), token_type: Type.Literal('Bearer'), scope: Type.String(), expires_in: Type.Integer() }, { title: 'Token' })

/** Adds the route. It has its own content types. */
export function addTokenEndpoint(server: ApiServer, parts: TokenEndpointParts): void {
  void server.register((scope: ApiServer, _options, done) => {
    scope.addContentTypeParser('application/x-www-form-urlencoded', { parseAs: 'string' }, (_request, body, parsed) => {
      parsed(null, Object.fromEntries(new URLSearchParams(body as string)))
    })
    scope.addHook('onRequest', (_request, reply, next) => {
      void reply.header('Cache-Control', 'no-store').header('Pragma', 'no-cache')
      next()
    })
    scope.setErrorHandler((error: FastifyError, _request, reply) => {
      if ((error.statusCode ?? 500) >= 500) throw error // of the whole server
      return refuseToken(reply, 400, 'invalid_request', error.validation === undefined ? error.message : 'grant_type and scope must be text, each once')
    })
    scope.post('/token', {
      schema: {
        summary: 'Get an access token', description: 'HTTP Basic with the client\'s id and secret; the body is a form or JSON.', tags: ['Authentication'], security: [{ client: [] }],
        body: Type.Object({ grant_type: Type.Optional(Type.String()), scope: Type.Optional(Type.String()) }), response: { 200: TokenResponse },
      },
    }, async (request, reply) => {
      const credentials = parseBasic(request.headers.authorization)
      const client = credentials && await parts.tables.selectFrom('api_clients').select(['id', 'account_id', 'permissions_group', 'secret_sha256'])
        .where('id', '=', credentials.id).where('revoked_at', 'is', null).executeTakeFirst()
      const isRight = isSecret(credentials?.secret ?? '', client?.secret_sha256 ?? null)
      if (client === undefined || !isRight) {
        void reply.header('WWW-Authenticate', 'Basic realm="imds-api"')
        return refuseToken(reply, 401, 'invalid_client', 'the client\'s id or secret is wrong')
      }
      const { grant_type: grant, scope: requested } = request.body
      if (grant === undefined) return refuseToken(reply, 400, 'invalid_request', 'grant_type is missing')
      if (GRANTS_OF_APPLICATIONS.includes(grant)) return refuseToken(reply, 400, 'unauthorized_client', `an API client may not use the grant ${grant}`)
      if (grant !== 'client_credentials') return refuseToken(reply, 400, 'unsupported_grant_type', 'grant_type must be client_credentials')
      const scopes = grantScopes(requested, SCOPES_OF_GROUP[client.permissions_group])
      if (scopes === undefined) return refuseToken(reply, 400, 'invalid_scope', 'scope must be infrastructure, orbit or both, and this client must be allowed it')
      const token = await parts.tokens.issue(parts.tables, { clientId: client.id, accountId: client.account_id }, scopes, parts.seconds)
      return reply.header('X-Oauth-Scopes', formatScopes(scopes))
        .send({ access_token: token, token_type: 'Bearer', scope: formatScopes(scopes), expires_in: parts.seconds })
    })
    done()
  })
}

function refuseToken(reply: FastifyReply, status: 400 | 401, error: OAuthError, description: string): FastifyReply {
  return reply.code(status).send({ error, error_description: description, error_name: status === 401 ? 'unauthorized' : 'bad_request', errors: [description] })
}
