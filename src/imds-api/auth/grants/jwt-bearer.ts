/**
 * The grant jwt-bearer (RFC 7523): a server acts as an API client that trusts it. Its identity token (contract H4) takes
 * the place of the secret, and is accepted once.
 */
import Type from 'typebox'
import { createLocalJWKSet, decodeJwt, errors, jwtVerify, type JSONWebKeySet, type JWTPayload } from 'jose'
import type { FailureSubject } from '../../../limits/failure-limit.ts'
import { findTrustingClient, MAX_USED_ASSERTIONS, useAssertion } from '../../changes/trusted-servers.ts'
import { inTransaction } from '../../database/transaction.ts'
import { Refusal } from '../../model/refusal.ts'
import { grantScopes } from '../../model/scopes.ts'
import { digest } from '../secrets.ts'
import { invalid, refuseBeyondFailures, refuseLimited, WRONG_SCOPE } from './grant.ts'
import type { BuildParts, Grant, GrantType } from './grant.ts'

export const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
/** The longest life of an assertion and of its access token, in seconds. Assertions that were used are kept for longer. */
const MAX_SECONDS = 3_600
/** By how much the clocks of hypervisors may differ. */
const CLOCK_TOLERANCE_SECONDS = 5

export const JWT_BEARER_GRANT: GrantType = {
  name: JWT_BEARER,
  title: 'JwtBearerGrant',
  fields: {
    client_id: Type.String({
      maxLength: 254,
      format: 'line',
      description: 'An API client that trusts the server. It sends no secret.',
    }),
    assertion: Type.String({ description: 'The identity token of the server, for this API.' }),
  },
  build: buildJwtBearer,
}

function buildJwtBearer(parts: BuildParts): Grant | undefined {
  if (parts.server === undefined) return undefined
  const { db, tokens, failures, lookups, seconds: maxSeconds, now, inTurn } = parts
  const { issuer: regionIssuer, baseUrl } = parts.server // the URL of the API is an audience too
  const { configuration, keys } = regionIssuer
  const { issuer } = configuration
  const keyOf = createLocalJWKSet(keys as JSONWebKeySet)
  const verify = async (assertion: string) => {
    const { payload } = await jwtVerify(assertion, keyOf, {
      issuer,
      audience: [issuer, baseUrl],
      algorithms: ['RS256', 'ES256'],
      requiredClaims: ['exp', 'nbf', 'jti', 'sub'],
      maxTokenAge: MAX_SECONDS,
      clockTolerance: CLOCK_TOLERANCE_SECONDS,
      currentDate: new Date(now()),
    })
    return payload as JWTPayload & { readonly exp: number; readonly sub: string; readonly jti: string }
  }
  return async ({ credentials, address, body: { assertion, client_id: clientId, scope } }) => {
    if (assertion === undefined || clientId === undefined || credentials !== undefined)
      throw invalid('invalid_request', 'send assertion and client_id, and no secret')
    const subject: FailureSubject = { kind: 'server', name: claimedServer(assertion) }
    refuseBeyondFailures(failures, subject, address)
    const wrong = (description: string, isReal: boolean) =>
      new Refusal('bad_request', [description], {
        oauthError: 'invalid_grant',
        quota: failures.countFailure(subject, address, isReal),
      })
    const { sub, jti, exp } = await verify(assertion).catch((error: unknown) => {
      throw error instanceof errors.JOSEError ? wrong(`the assertion is not valid: ${error.message}`, false) : error
    })
    const client = await lookups.run(address, () => findTrustingClient(db, clientId, sub, now()))
    if (client === undefined) throw wrong(`there is no API client ${clientId} that trusts ${sub}`, true)
    const seconds = Math.min(maxSeconds, MAX_SECONDS, exp - Math.floor(now() / 1000))
    if (seconds <= 0) throw wrong('the assertion has expired', true)
    refuseLimited(client, address, now())
    const scopes = grantScopes(scope, client.scopes)
    if (scopes === undefined) throw WRONG_SCOPE
    const owner = { clientId: client.id, accountId: client.accountId, serverId: sub }
    const granted = await inTurn(client, () =>
      inTransaction(db, async (tx) => {
        if (!(await useAssertion(tx, sub, digest(jti))))
          throw wrong(`the assertion was used before, or ${sub} has used ${MAX_USED_ASSERTIONS} in two hours`, true)
        return { accessToken: await tokens.issue(tx, owner, scopes, seconds), refreshToken: undefined, scopes, seconds }
      }),
    )
    failures.recordSuccess(subject, address)
    return granted
  }
}

/** The server that an assertion names, before it is verified: its failures count for this name. */
function claimedServer(assertion: string): string {
  try {
    const { sub }: { readonly sub?: unknown } = decodeJwt(assertion)
    return typeof sub === 'string' ? sub : ''
  } catch {
    return ''
  }
}
