/** The common part of the grants of OAuth 2.0 (RFC 6749): their parts, requests and refusals. */
import type { TString } from 'typebox'
import type { FailureLimit, FailureSubject } from '../../../limits/failure-limit.ts'
import type { Quota } from '../../../limits/rate-limit-headers.ts'
import type { Credentials } from '../../../runtime/basic-auth.ts'
import type { Client } from '../../changes/sign-ins.ts'
import type { Tx, Db } from '../../database/transaction.ts'
import { Refusal, shed } from '../../model/refusal.ts'
import type { Lookups } from '../lookups.ts'
import type { RegionIssuer } from '../region-issuer.ts'
import type { TokenFamilies } from '../token-families.ts'
import type { AccessTokens } from '../tokens.ts'

/** Dependencies of the grants. `seconds`: the lifetime of an access token. `now`: milliseconds since 1970. */
export interface GrantParts {
  readonly db: Db
  readonly tokens: AccessTokens
  readonly families: TokenFamilies
  readonly failures: FailureLimit
  readonly lookups: Lookups
  readonly seconds: number
  /** Undefined: the region has no issuer of identity tokens. */
  readonly server: { readonly issuer: RegionIssuer; readonly baseUrl: string } | undefined
  readonly now: () => number
}

/** A token request. `code`: the one-time password in a header. `address`: the address of the client. */
export interface TokenRequest {
  readonly credentials: Credentials | undefined
  readonly address: string
  readonly code: string | undefined
  readonly body: Readonly<Record<string, string | undefined>>
}

/** `refreshToken`: undefined for an API client. `seconds`: the lifetime of the access token. */
export interface GrantedTokens {
  readonly accessToken: string
  readonly seconds: number
  readonly refreshToken: string | undefined
  readonly scopes: readonly string[]
}

/** Rejects with a Refusal. */
export type Grant = (request: TokenRequest) => Promise<GrantedTokens>

/**
 * `authenticate`: the client whose secret the request has, which must be of a kind. `inTurn`: runs a grant at the turn of
 * the account of a client. Both reject with a Refusal, the latter if too many wait.
 */
export interface BuildParts extends GrantParts {
  readonly authenticate: <Kind extends Client['kind']>(
    request: TokenRequest,
    kind: Kind,
  ) => Promise<Extract<Client, { readonly kind: Kind }>>
  readonly inTurn: (client: Client, grant: () => Promise<GrantedTokens>) => Promise<GrantedTokens>
}

/**
 * A kind of grant: the endpoint, its document and the discovery follow. `fields`: those of the request besides grant_type
 * and scope. `build` returns undefined if the region has no such grant.
 */
export interface GrantType {
  readonly name: string
  readonly title: string
  readonly fields: Readonly<Record<string, TString>>
  readonly build: (parts: BuildParts) => Grant | undefined
}

/** Seconds until a request may be repeated while too many wait. */
const BUSY_SECONDS = 5
/** Too many requests wait, for a check of a password or for their turn. */
export const BUSY = shed('tokens', 'too many token requests wait: try again later', BUSY_SECONDS)
export const WRONG_CLIENT = "the client's id or secret is wrong"
export const WRONG_SCOPE = invalid(
  'invalid_scope',
  'scope must be infrastructure, orbit or both, and this client must be allowed it',
)

/** A mistake other than wrong credentials. `error`: as RFC 6749 (5.2) names it. */
export function invalid(error: string, description: string): Refusal {
  return new Refusal('bad_request', [description], { oauthError: error })
}

/** Wrong credentials. `quota`: set if it counts as a failure. */
export class WrongCredentials extends Refusal {
  constructor(description: string, quota?: Quota) {
    super('unauthorized', [description], {
      challenge: 'Basic realm="imds-api"',
      oauthError: 'invalid_client',
      ...(quota !== undefined && { quota }),
    })
  }
}

/** The password was right, and a one-time password is missing, wrong or used up. */
export class WrongCode extends WrongCredentials {}

/** Refuses a subject that has failed too often. */
export function refuseBeyondFailures(failures: FailureLimit, subject: FailureSubject, address: string): void {
  const quota = failures.exceededQuota(subject, address)
  if (quota !== undefined)
    throw new Refusal('too_many_requests', ['too many failed token requests: try again later'], {
      retrySeconds: quota.retrySeconds,
      quota,
      oauthError: 'temporarily_unavailable',
    })
}

/** Refuses a client that has authenticated, and may have no token now. */
export function refuseLimited(client: Client, address: string, nowMs: number): void {
  if (client.kind !== 'api-client') return
  const { id, limits } = client
  if (limits.expiresAtMs <= nowMs)
    throw new WrongCredentials(`the API client ${id} has expired: change its expires_at, or use another`)
  if (!limits.allows(address))
    throw new WrongCredentials(`the API client ${id} may not be used from this address: see its allow_access`)
}

/** Issues an access token for a family of refresh tokens. */
export async function issueForFamily(
  tx: Tx,
  { tokens, seconds }: GrantParts,
  familyId: number,
  refreshToken: string,
  scopes: readonly string[],
): Promise<GrantedTokens> {
  return { accessToken: await tokens.issue(tx, { familyId }, scopes, seconds), refreshToken, scopes, seconds }
}
