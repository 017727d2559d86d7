/** The common part of the grants of OAuth 2.0 (RFC 6749): their parts, requests and outcomes. */
import type { Quota } from '../../../limits/rate-limit-headers.ts'
import type { Credentials } from '../../../runtime/basic-auth.ts'
import type { Client } from '../../changes/sign-ins.ts'
import type { Tx, Db } from '../../database/transaction.ts'
import type { KnownAddresses } from '../known-addresses.ts'
import type { TokenFamilies } from '../token-families.ts'
import type { AccessTokens } from '../tokens.ts'

/** Dependencies of the grants. `seconds`: the lifetime of an access token. `now`: milliseconds since 1970. */
export interface GrantParts {
  readonly db: Db
  readonly tokens: AccessTokens
  readonly families: TokenFamilies
  readonly known: KnownAddresses
  readonly seconds: number
  readonly now: () => number
}

/** A token request. `code`: the one-time password in a header. `address`: the address of the client. */
export interface TokenRequest {
  readonly credentials: Credentials | undefined
  readonly address: string
  readonly code: string | undefined
  readonly body: Readonly<Partial<Record<'grant_type' | 'scope' | 'username' | 'password' | 'refresh_token', string>>>
}

/** The client has sent the right secret. */
export type Grant = (client: Client, request: TokenRequest) => Promise<TokenOutcome>

export type TokenOutcome =
  | {
      readonly kind: 'granted'
      readonly accessToken: string
      readonly refreshToken: string | undefined
      readonly scopes: readonly string[]
    }
  | {
      readonly kind: 'invalid'
      readonly error:
        | 'invalid_request'
        | 'invalid_grant'
        | 'unsupported_grant_type'
        | 'unauthorized_client'
        | 'invalid_scope'
      readonly description: string
    }
  /**
   * Wrong credentials. `needsCode`: the password was right, and a one-time password is missing, wrong or used up.
   * `quota`: set if it counts as a failure.
   */
  | { readonly kind: 'wrong'; readonly needsCode: boolean; readonly description: string; readonly quota?: Quota }
  /** Too many failures before. */
  | { readonly kind: 'limited'; readonly quota: Quota }
  /** Too many requests wait, for a check of a password or for their turn. */
  | { readonly kind: 'busy' }
export type WrongCredentials = Extract<TokenOutcome, { kind: 'wrong' }>

export const BUSY: TokenOutcome = { kind: 'busy' }
export const WRONG_CLIENT = wrong("the client's id or secret is wrong")
export const WRONG_SCOPE = invalid(
  'invalid_scope',
  'scope must be infrastructure, orbit or both, and this client must be allowed it',
)

export function invalid(error: Extract<TokenOutcome, { kind: 'invalid' }>['error'], description: string): TokenOutcome {
  return { kind: 'invalid', error, description }
}

export function wrong(description: string, needsCode = false): WrongCredentials {
  return { kind: 'wrong', needsCode, description }
}

/** Issues an access token for a family of refresh tokens. */
export async function issueForFamily(
  tx: Tx,
  { tokens, seconds }: GrantParts,
  familyId: number,
  refreshToken: string,
  scopes: readonly string[],
): Promise<TokenOutcome> {
  return { kind: 'granted', accessToken: await tokens.issue(tx, { familyId }, scopes, seconds), refreshToken, scopes }
}
