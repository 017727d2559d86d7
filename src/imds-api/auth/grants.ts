/**
 * The grants of OAuth 2.0 (RFC 6749) that this API has. An API client uses client_credentials, and acts for its
 * account. An application uses password and refresh_token, and acts for its users.
 */
import type { Kysely } from 'kysely'
import {
  claimSignIn,
  findClient,
  findUser,
  lockApplication,
  type Client,
  type UserCredentials,
} from '../changes/sign-ins.ts'
import type { Tables } from '../database/tables.ts'
import { inTransaction, type Tx } from '../database/transaction.ts'
import { FairQueue, type FairQueueLimits } from '../../limits/fair-queue.ts'
import { formDecoded, type Credentials } from '../../runtime/basic-auth.ts'
import type { FailureLimit, FailureSubject } from '../../limits/failure-limit.ts'
import type { KnownAddresses } from './known-addresses.ts'
import { splitCode, stepOfCode } from './one-time-password.ts'
import { verifyPassword } from './password.ts'
import type { Quota } from '../../limits/rate-limit.ts'
import { grantScopes, narrowScopes, SCOPES, type Scope } from '../model/scopes.ts'
import { isSecret } from './secrets.ts'
import { allowsAddress } from '../model/client-limits.ts'
import type { TokenFamilies } from './token-families.ts'
import type { AccessTokens } from './tokens.ts'

/**
 * What the grants need. `known`: of `limit`. `seconds`: the lifetime of an access token. `now`: milliseconds since
 * 1970.
 */
export interface GrantParts {
  readonly db: Kysely<Tables>
  readonly tokens: AccessTokens
  readonly families: TokenFamilies
  readonly limit: FailureLimit
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
        'invalid_request' | 'invalid_grant' | 'unsupported_grant_type' | 'unauthorized_client' | 'invalid_scope'
      readonly description: string
    }
  /**
   * Wrong credentials. `needsCode`: the password was right, and a one-time password is missing, wrong or used up.
   * `quota`: set if it counts as a failure.
   */
  | { readonly kind: 'wrong'; readonly needsCode: boolean; readonly description: string; readonly quota?: Quota }
  /** Too many failures before. */
  | { readonly kind: 'limited'; readonly seconds: number; readonly quota: Quota }
  /** Too many requests wait, for a check of a password or for their turn. */
  | { readonly kind: 'busy' }

/** A password check takes 32 MiB and about 0.2 s of a core, so a full queue lasts some seconds. */
const PASSWORD_CHECKS: FairQueueLimits = { all: { atOnce: 2, waitingMax: 32 } }
/**
 * How many token requests of an account use the database at once. Refreshes of one sign-in wait for each other's locks
 * and for changes of the user: without a bound they would take all connections.
 */
const GRANT_QUEUE: FairQueueLimits = { atOnce: 2, waitingMax: 1_024, timeoutMs: 10_000 }

type WrongCredentials = Extract<TokenOutcome, { kind: 'wrong' }>

/** A sign-in with a password. `user`: undefined if there is none. `presented`: the password, perhaps with a code. */
interface SignIn {
  readonly applicationId: string
  readonly user: UserCredentials | undefined
  readonly subject: FailureSubject
  readonly presented: string
  readonly scopes: readonly Scope[]
  readonly request: TokenRequest
}

const NO_CLIENT: WrongCredentials = {
  kind: 'wrong',
  needsCode: false,
  description: 'the request has no credentials: send the id and secret of a client with HTTP Basic',
}
const WRONG_CLIENT: WrongCredentials = {
  kind: 'wrong',
  needsCode: false,
  description: "the client's id or secret is wrong",
}
const WRONG_PASSWORD: WrongCredentials = {
  kind: 'wrong',
  needsCode: false,
  description: 'the username or the password is wrong',
}
const NO_CODE: TokenOutcome = { kind: 'wrong', needsCode: true, description: 'a one-time password is required' }
const WRONG_CODE: WrongCredentials = {
  kind: 'wrong',
  needsCode: true,
  description: 'the one-time password is wrong, was used before, or is older than one that was used',
}
const WRONG_REFRESH = invalid(
  'invalid_grant',
  'the refresh token is not valid for this client, has expired, was used before, or was revoked',
)
const WRONG_SCOPE = invalid(
  'invalid_scope',
  'scope must be infrastructure, orbit or both, and this client must be allowed it',
)

/** Why a client with the right secret gets no token; undefined: it may have one. */
function limitOutcome(
  { id, limits }: Extract<Client, { kind: 'api-client' }>,
  address: string,
  nowMs: number,
): TokenOutcome | undefined {
  const description =
    limits.expiresAtMs <= nowMs
      ? `the API client ${id} has expired: change its expires_at, or use another`
      : allowsAddress(limits, address)
        ? undefined
        : `the API client ${id} may not be used from this address: see its allow_access`
  return description === undefined ? undefined : { kind: 'wrong', needsCode: false, description }
}

export class Grants {
  readonly #parts: GrantParts
  readonly #checks = new FairQueue(PASSWORD_CHECKS)
  readonly #turns = new FairQueue(GRANT_QUEUE)

  constructor(parts: GrantParts) {
    this.#parts = parts
  }

  async grant(request: TokenRequest): Promise<TokenOutcome> {
    const client = await this.#authenticate(request)
    if (client.kind !== 'api-client' && client.kind !== 'application') return client
    const { grant_type: grant } = request.body
    if (grant === undefined) return invalid('invalid_request', 'grant_type is missing')
    if (client.kind === 'api-client') {
      if (grant === 'client_credentials') return this.#inTurn(client, () => this.#clientCredentials(client, request))
      if (grant === 'password' || grant === 'refresh_token')
        return invalid('unauthorized_client', `an API client may not use the grant ${grant}: only an application may`)
      return invalid('unsupported_grant_type', 'grant_type must be client_credentials')
    }
    if (grant === 'password') return this.#password(client, request)
    if (grant === 'refresh_token') return this.#inTurn(client, () => this.#refresh(client.id, request))
    if (grant === 'client_credentials')
      return invalid(
        'unauthorized_client',
        'an application may not use the grant client_credentials: only an API client may',
      )
    return invalid('unsupported_grant_type', 'grant_type must be password or refresh_token')
  }

  async #authenticate({ credentials, address }: TokenRequest): Promise<Client | TokenOutcome> {
    const { db, limit, known, now } = this.#parts
    const { id: text, secret } = credentials ?? { id: '', secret: '' }
    const id = formDecoded(text) // no id has a character that is encoded
    const subject: FailureSubject = { kind: 'client', name: id }
    const seconds = await known.waitSeconds(subject, address)
    if (seconds !== undefined) return { kind: 'limited', seconds, quota: limit.quotaOf(subject, address, seconds) }
    const found = await findClient(db, id, now())
    const isRight = found?.digests.some((one) => isSecret(secret, one) || isSecret(formDecoded(secret), one)) === true
    if (found === undefined || !isRight) {
      limit.failed(subject, address, found !== undefined)
      return {
        ...(credentials === undefined ? NO_CLIENT : WRONG_CLIENT),
        quota: limit.quotaOf(subject, address, undefined),
      }
    }
    await known.succeeded(subject, address)
    const { client } = found
    return (client.kind === 'api-client' ? limitOutcome(client, address, now()) : undefined) ?? client
  }

  async #inTurn({ id, accountId }: Client, task: () => Promise<TokenOutcome>): Promise<TokenOutcome> {
    return (await this.#turns.run({ key: accountId, caller: id }, task)) ?? { kind: 'busy' }
  }

  async #clientCredentials(
    { id, accountId, scopes: allowed }: Extract<Client, { kind: 'api-client' }>,
    { body }: TokenRequest,
  ): Promise<TokenOutcome> {
    const { db, tokens, seconds } = this.#parts
    const scopes = grantScopes(body.scope, allowed)
    if (scopes === undefined) return WRONG_SCOPE
    return {
      kind: 'granted',
      accessToken: await tokens.issue(db, { clientId: id, accountId }, scopes, seconds),
      refreshToken: undefined,
      scopes,
    }
  }

  async #password(
    { id: applicationId, accountId }: Extract<Client, { kind: 'application' }>,
    request: TokenRequest,
  ): Promise<TokenOutcome> {
    const { username, password, scope } = request.body
    if (username === undefined || password === undefined)
      return invalid('invalid_request', 'username and password are required')
    const scopes = grantScopes(scope, SCOPES)
    if (scopes === undefined) return WRONG_SCOPE
    const name = username.toLowerCase()
    const user = await findUser(this.#parts.db, name)
    // the id and the e-mail address of a user are one subject
    const subject: FailureSubject = { kind: 'user', name: user?.id ?? name }
    const { known, limit } = this.#parts
    const { address } = request
    const seconds = await known.waitSeconds(subject, address)
    if (seconds !== undefined) return { kind: 'limited', seconds, quota: limit.quotaOf(subject, address, seconds) }
    const signIn = { applicationId, user, subject, presented: password, scopes, request }
    return (
      (await this.#checks.run({ key: accountId, caller: subject.name }, () => this.#signIn(signIn))) ?? { kind: 'busy' }
    )
  }

  /**
   * Runs in the queue and checks the limit again, so guesses that were sent in parallel exceed the limit by one at
   * most.
   */
  async #signIn({ applicationId, user, subject, presented, scopes, request }: SignIn): Promise<TokenOutcome> {
    const { db, families, limit, known, now } = this.#parts
    const { address } = request
    const seconds = await known.waitSeconds(subject, address)
    if (seconds !== undefined) return { kind: 'limited', seconds, quota: limit.quotaOf(subject, address, seconds) }
    const failed = (outcome: WrongCredentials): WrongCredentials => {
      limit.failed(subject, address, user !== undefined)
      return { ...outcome, quota: limit.quotaOf(subject, address, undefined) }
    }
    const secret = user?.totpSecret
    const split = splitCode(presented, request.code)
    const { password, code } = secret === undefined ? { password: presented, code: undefined } : split
    const isRight = await verifyPassword(password, user?.passwordHash) // takes as long for an unknown user
    if (!isRight && request.code === undefined && split.code !== undefined) {
      // the password may end like a code; takes as long for every user
      if ((await verifyPassword(presented, user?.passwordHash)) && secret !== undefined) return NO_CODE
    }
    if (user === undefined || !isRight) return failed(WRONG_PASSWORD)
    // not a failure: the client now asks the user for the code
    if (secret !== undefined && code === undefined) return NO_CODE
    const step = secret === undefined || code === undefined ? undefined : stepOfCode(secret, code, now())
    if (secret !== undefined && step === undefined) return failed(WRONG_CODE)
    const granted = await inTransaction(db, async (tx): Promise<TokenOutcome | undefined> => {
      if (!(await claimSignIn(tx, user, step))) return undefined
      if (!(await lockApplication(tx, applicationId))) return WRONG_CLIENT // deleted while the password was checked
      const { family, refreshToken } = await families.begin(tx, applicationId, user.id, scopes)
      return this.#issue(tx, family.id, refreshToken, scopes)
    })
    if (granted === undefined) return failed(secret === undefined ? WRONG_PASSWORD : WRONG_CODE)
    await known.succeeded(subject, address)
    return granted
  }

  async #refresh(applicationId: string, { body }: TokenRequest): Promise<TokenOutcome> {
    const { db, families } = this.#parts
    const { refresh_token: token, scope } = body
    if (token === undefined) return invalid('invalid_request', 'refresh_token is required')
    return inTransaction(db, async (tx): Promise<TokenOutcome> => {
      const used = await families.find(tx, applicationId, token)
      if (used === undefined) return WRONG_REFRESH
      const scopes = narrowScopes(scope, used.family.scopes)
      if (scopes === undefined)
        return invalid(
          'invalid_scope',
          `scope must be within the scopes of the refresh token: ${used.family.scopes.join(', ')}`,
        )
      return this.#issue(tx, used.family.id, await families.rotate(tx, used), scopes)
    })
  }

  async #issue(tx: Tx, familyId: number, refreshToken: string, scopes: readonly string[]): Promise<TokenOutcome> {
    const { tokens, seconds } = this.#parts
    return {
      kind: 'granted',
      accessToken: await tokens.issue(tx, { familyId }, scopes, seconds),
      refreshToken,
      scopes,
    }
  }
}

function invalid(error: Extract<TokenOutcome, { kind: 'invalid' }>['error'], description: string): TokenOutcome {
  return { kind: 'invalid', error, description }
}
