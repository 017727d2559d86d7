/**
 * POST /token (RFC 6749): returns an access token for credentials. grants.ts has the rules, this file the HTTP, and the
 * document by which libraries find the endpoint (RFC 8414).
 *
 * The body is a form or JSON. Failures have OAuth's `error`, and the `error_name` and `errors` of this API beside it.
 */
import type { FastifyError } from 'fastify'
import Type, { type Static, type TOptional, type TString } from 'typebox'
import { jsonParser, setBodyParsers } from '../http/body.ts'
import { formatFaults } from '../http/faults.ts'
import { publicDocument } from '../http/public-document.ts'
import { refuse, statusOf, type RefusalBody, Refusal } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { parseBasic } from '../../runtime/basic-auth.ts'
import { invalid, WrongCode } from './grants/grant.ts'
import { GRANTS, type Grants } from './grants.ts'
import { formatScopes, SCOPES } from '../model/scopes.ts'
import { parseJson } from '../../runtime/json.ts'

/** Dependencies of the endpoint. `baseUrl`: the URL of the API, without a slash at its end. */
export interface TokenEndpointParts {
  readonly grants: Grants
  readonly baseUrl: string
}

/**
 * The limit of the body, in bytes: several times the longest valid one. It needs no sign-in, so the bodies of 4,096
 * connections must leave room for others (body-budget.ts).
 */
const MAX_BODY_BYTES = 16_384
const MAX_FORM_PARAMETERS = 100

const Text = Type.Optional(Type.String())
/** The fields of all requests. The grants check them, with the errors of OAuth. */
const FIELDS: Readonly<Record<string, TOptional<TString>>> = {
  ...{ grant_type: Text, scope: Text, client_id: Text, client_secret: Text },
  ...Object.fromEntries(
    GRANTS.flatMap(({ fields }) => Object.entries(fields).map(([name, field]) => [name, Type.Optional(field)])),
  ),
}
const Body = Type.Object(FIELDS, { examples: [{ grant_type: 'client_credentials' }] })
const Scope = Type.Optional(Type.String({ description: 'Some of the scopes that the client may have. Default: all.' }))
const TokenRequest = Type.Union(
  GRANTS.map(({ name, title, fields }) =>
    Type.Object({ grant_type: Type.Literal(name), ...fields, scope: Scope }, { title }),
  ),
  { title: 'TokenRequest' },
)
/** Those that may have a one-time password, in order of preference; a response asks for it in all of them. */
const OTP_HEADERS = ['x-service-otp', 'x-brightbox-otp'] as const
const Code = Type.Optional(
  Type.String({
    description: 'A one-time password, for the grant password of a user with two-factor authentication.',
  }),
)
const Headers = Type.Object(Object.fromEntries(OTP_HEADERS.map((name) => [name, Code])))
const TokenResponse = Type.Object(
  {
    access_token: Type.String(),
    token_type: Type.Literal('Bearer'),
    refresh_token: Type.Optional(Type.String({ description: 'Of the grants password and refresh_token.' })),
    scope: Type.String(),
    expires_in: Type.Integer(),
  },
  { title: 'Token' },
)

/** Adds the routes. The body of a token request may also be a form. */
export function addTokenEndpoint(server: ApiServer, { grants, baseUrl }: TokenEndpointParts): void {
  const metadata = {
    issuer: baseUrl,
    token_endpoint: `${baseUrl}/token`,
    token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post', 'none'],
    grant_types_supported: grants.names,
    response_types_supported: [], // required, although there is no authorization endpoint
    scopes_supported: SCOPES,
    service_documentation: `${baseUrl}/docs`,
  }
  server.get(
    '/.well-known/oauth-authorization-server',
    { schema: { hide: true } },
    publicDocument(() => metadata),
  )
  void server.register((scope: ApiServer, _options, done) => {
    setBodyParsers(scope, {
      'application/x-www-form-urlencoded': parseForm,
      'application/json': jsonParser(undefined, parseSecretJson),
    })
    scope.addHook('onRequest', (_request, reply, next) => {
      void reply.header('Cache-Control', 'no-store').header('Pragma', 'no-cache')
      next()
    })
    scope.addHook('preSerialization', (_request, _reply, payload, next) => next(null, withOauthError(payload)))
    scope.setErrorHandler((error: FastifyError | Refusal, _request, reply) => {
      if (error instanceof WrongCode) for (const name of OTP_HEADERS) void reply.header(name, 'required')
      const isOauth = error instanceof Refusal && error.options.oauthError !== undefined
      const status = error instanceof Refusal ? statusOf(error.name) : (error.statusCode ?? 500)
      // to the error handler of the whole server
      throw isOauth || status >= 500 ? error : invalid('invalid_request', messageOf(error))
    })
    scope.post(
      '/token',
      {
        bodyLimit: MAX_BODY_BYTES,
        schema: {
          operationId: 'createToken',
          summary: 'Get an access token',
          tags: ['Authentication'],
          consumes: ['application/json', 'application/x-www-form-urlencoded'],
          security: [{ client: [] }],
          description:
            'HTTP Basic with the id and secret of an API client or application, or both in the body as `client_id` and ' +
            '`client_secret`. The body is a form or JSON.',
          headers: Headers,
          body: Body,
          'x-body': TokenRequest,
          response: { 200: TokenResponse },
        },
      },
      async ({ headers, address, body }, reply) => {
        const code = OTP_HEADERS.map((name) => headers[name]).find((value) => value !== undefined && value !== '')
        const credentials = credentialsOf(headers.authorization, body)
        const { accessToken, refreshToken, scopes, seconds } = await grants.grant({ credentials, address, code, body })
        return reply.header('X-Oauth-Scopes', formatScopes(scopes)).send({
          access_token: accessToken,
          token_type: 'Bearer',
          ...(refreshToken !== undefined && { refresh_token: refreshToken }),
          scope: formatScopes(scopes),
          expires_in: seconds,
        })
      },
    )
    done()
  })
}

/** Those of HTTP Basic, which most clients use, or else those in the body (RFC 6749, 2.3.1). */
function credentialsOf(header: string | undefined, { client_id: id, client_secret: secret }: Static<typeof Body>) {
  return parseBasic(header) ?? (id !== undefined && secret !== undefined ? { id, secret } : undefined)
}

function parseForm(text: string): unknown {
  if (text.split('&', MAX_FORM_PARAMETERS + 1).length > MAX_FORM_PARAMETERS)
    throw refuse('bad_request', `the form must have at most ${MAX_FORM_PARAMETERS} parameters`)
  const parameters = new Map<string, string>()
  for (const [name, value] of new URLSearchParams(text)) {
    // RFC 6749, 3.2
    if (parameters.has(name)) throw refuse('bad_request', `${name} is given more than once`)
    parameters.set(name, value)
  }
  return Object.fromEntries(parameters)
}

function parseSecretJson(text: string): unknown {
  const value = parseJson(text)
  if (value === undefined) throw new SyntaxError('it is not JSON')
  return value
}

function messageOf(error: FastifyError | Refusal): string {
  return error instanceof Refusal || error.validation === undefined
    ? error.message
    : formatFaults(error.validation)
        .map((fault) => fault.message)
        .join('; ')
}

/** Adds OAuth's members to a refusal that the error handler of the whole server has made. */
function withOauthError(payload: unknown): unknown {
  const body = payload as Partial<RefusalBody> & { readonly error?: string }
  if (body.error_name === undefined || body.error !== undefined) return payload
  return {
    error: body.error_name === 'service_unavailable' ? 'temporarily_unavailable' : 'server_error',
    error_description: body.errors?.[0],
    ...body,
  }
}
