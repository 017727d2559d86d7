/**
 * The grants of OAuth 2.0 (RFC 6749) that this API has, each in a file of grants/. An API client uses
 * client_credentials, and acts for its account; a server that it trusts uses jwt-bearer in its place. An application uses
 * password and refresh_token, and acts for its users.
 */
import { FairQueue, type FairQueueLimits } from '../../limits/fair-queue.ts'
import type { FailureSubject } from '../../limits/failure-limit.ts'
import { formDecoded } from '../../runtime/basic-auth.ts'
import { findClient, type Client } from '../changes/sign-ins.ts'
import { buildClientCredentials } from './grants/client-credentials.ts'
import { BUSY, invalid, refuseBeyondFailures, refuseLimited, WRONG_CLIENT, WrongCredentials } from './grants/grant.ts'
import type { Grant, GrantedTokens, GrantParts, InTurn, TokenRequest } from './grants/grant.ts'
import { buildJwtBearer, JWT_BEARER } from './grants/jwt-bearer.ts'
import { buildPassword } from './grants/password.ts'
import { buildRefreshToken } from './grants/refresh-token.ts'
import { hasDigest } from './secrets.ts'

/**
 * How many token requests of an account use the database at once. Refreshes of one sign-in wait for each other's locks
 * and for changes of the user: without a bound they would take all connections.
 */
const GRANT_QUEUE: FairQueueLimits = { atOnce: 2, maxWaiting: 1_024, timeoutMs: 10_000 }

const NO_CLIENT = 'the request has no credentials: send the id and secret of a client with HTTP Basic'
const [API_CLIENT, APPLICATION] = ['an API client', 'an application']

export class Grants {
  readonly #parts: GrantParts
  readonly #grants: Readonly<Record<Client['kind'], ReadonlyMap<string, Grant>>>
  /** Needs no secret of a client. Undefined: the region has no issuer. */
  readonly #byServer: ((request: TokenRequest) => Promise<GrantedTokens>) | undefined

  constructor(parts: GrantParts) {
    const turns = new FairQueue(GRANT_QUEUE)
    const inTurn: InTurn = async (client, grant) => {
      const granted = await turns.run({ key: client.accountId, caller: client.id }, grant)
      if (granted === undefined) throw BUSY
      return granted
    }
    const queued =
      (grant: Grant): Grant =>
      (client, request) =>
        inTurn(client, () => grant(client, request))
    const { server } = parts
    this.#parts = parts
    this.#byServer = server && buildJwtBearer(parts, server.issuer, server.baseUrl, inTurn)
    this.#grants = {
      'api-client': new Map([['client_credentials', queued(buildClientCredentials(parts))]]),
      application: new Map([
        ['password', buildPassword(parts)], // has a queue for its checks
        ['refresh_token', queued(buildRefreshToken(parts))],
      ]),
    }
  }

  /** The values of `grant_type`. */
  get names(): readonly string[] {
    const names = Object.values(this.#grants).flatMap((grants) => [...grants.keys()])
    return this.#byServer === undefined ? names : [...names, JWT_BEARER]
  }

  /** Rejects with a Refusal. */
  async grant(request: TokenRequest): Promise<GrantedTokens> {
    const { grant_type: name } = request.body
    if (name === JWT_BEARER && this.#byServer !== undefined) return this.#byServer(request)
    const client = await this.#authenticate(request)
    if (name === undefined) throw invalid('invalid_request', 'grant_type is missing')
    const own = this.#grants[client.kind]
    const grant = own.get(name)
    if (grant !== undefined) return grant(client, request)
    if (!Object.values(this.#grants).some((grants) => grants.has(name)))
      throw invalid('unsupported_grant_type', `grant_type must be ${[...own.keys()].join(' or ')}`)
    const [sender, only] = client.kind === 'api-client' ? [API_CLIENT, APPLICATION] : [APPLICATION, API_CLIENT]
    throw invalid('unauthorized_client', `${sender} may not use the grant ${name}: only ${only} may`)
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
