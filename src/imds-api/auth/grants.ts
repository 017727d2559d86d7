/**
 * The grants of OAuth 2.0 (RFC 6749) that this API has, each in a file of grants/. An API client uses
 * client_credentials, and acts for its account; a server that it trusts uses jwt-bearer in its place. An application uses
 * password and refresh_token, and acts for its users.
 */
import { FairQueue, type FairQueueLimits } from '../../limits/fair-queue.ts'
import type { FailureSubject } from '../../limits/failure-limit.ts'
import { formDecoded } from '../../runtime/basic-auth.ts'
import { findClient, type Client } from '../changes/sign-ins.ts'
import { CLIENT_CREDENTIALS } from './grants/client-credentials.ts'
import { BUSY, invalid, refuseBeyondFailures, refuseLimited, WRONG_CLIENT, WrongCredentials } from './grants/grant.ts'
import type { BuildParts, Grant, GrantedTokens, GrantParts, GrantType, TokenRequest } from './grants/grant.ts'
import { JWT_BEARER_GRANT } from './grants/jwt-bearer.ts'
import { PASSWORD } from './grants/password.ts'
import { REFRESH_TOKEN } from './grants/refresh-token.ts'
import { hasDigest } from './secrets.ts'

/**
 * How many token requests of an account use the database at once. Refreshes of one sign-in wait for each other's locks
 * and for changes of the user: without a bound they would take all connections.
 */
const GRANT_QUEUE: FairQueueLimits = { atOnce: 2, maxWaiting: 1_024, timeoutMs: 10_000 }

export const GRANTS: readonly GrantType[] = [CLIENT_CREDENTIALS, PASSWORD, REFRESH_TOKEN, JWT_BEARER_GRANT]

const NO_CLIENT = 'the request has no credentials: send the id and secret of a client with HTTP Basic'
/** Who may use a grant that another kind of client has asked for. */
const KINDS: Readonly<Record<Client['kind'], string>> = { 'api-client': 'an API client', application: 'an application' }

export class Grants {
  readonly #parts: GrantParts
  readonly #grants = new Map<string, Grant>()

  constructor(parts: GrantParts) {
    this.#parts = parts
    const turns = new FairQueue(GRANT_QUEUE)
    const inTurn: BuildParts['inTurn'] = async (client, grant) => {
      const granted = await turns.run({ key: client.accountId, caller: client.id }, grant)
      if (granted === undefined) throw BUSY
      return granted
    }
    const authenticate: BuildParts['authenticate'] = async (request, kind) => {
      const client = await this.#authenticate(request)
      if (client.kind === kind) return client as Extract<Client, { kind: typeof kind }>
      throw invalid('unauthorized_client', `only ${KINDS[kind]} may use this grant, and this is ${KINDS[client.kind]}`)
    }
    for (const { name, build } of GRANTS) {
      const grant = build({ ...parts, authenticate, inTurn })
      if (grant !== undefined) this.#grants.set(name, grant)
    }
  }

  /** The values of `grant_type`. */
  get names(): readonly string[] {
    return [...this.#grants.keys()]
  }

  /** Rejects with a Refusal. */
  async grant(request: TokenRequest): Promise<GrantedTokens> {
    const { grant_type: name = '' } = request.body
    const grant = this.#grants.get(name)
    if (grant !== undefined) return grant(request)
    await this.#authenticate(request)
    throw name === ''
      ? invalid('invalid_request', 'grant_type is missing')
      : invalid('unsupported_grant_type', `grant_type must be one of ${this.names.join(', ')}`)
  }

  async #authenticate({ credentials, address }: TokenRequest): Promise<Client> {
    const { db, failures, lookups, now } = this.#parts
    const { id: text, secret } = credentials ?? { id: '', secret: '' }
    const id = formDecoded(text) // no id has a character that is encoded
    const subject: FailureSubject = { kind: 'client', name: id }
    refuseBeyondFailures(failures, subject, address)
    const found = await lookups.run(address, () => findClient(db, id, now()))
    const isRight = found?.digests.some((one) => hasDigest(secret, one) || hasDigest(formDecoded(secret), one)) === true
    if (found === undefined || !isRight) {
      const quota = failures.countFailure(subject, address, found !== undefined)
      throw new WrongCredentials(credentials === undefined ? NO_CLIENT : WRONG_CLIENT, quota)
    }
    failures.recordSuccess(subject, address)
    refuseLimited(found.client, address, now())
    return found.client
  }
}
