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
import type {
  BuildParts,
  Grant,
  GrantedTokens,
  GrantParts,
  GrantType,
  SecretlessGrant,
  TokenRequest,
} from './grants/grant.ts'
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
const [API_CLIENT, APPLICATION] = ['an API client', 'an application']

export class Grants {
  readonly #parts: GrantParts
  readonly #ofClients = new Map<string, { readonly of: Client['kind']; readonly grant: Grant }>()
  readonly #secretless = new Map<string, SecretlessGrant>()

  constructor(parts: GrantParts) {
    this.#parts = parts
    const turns = new FairQueue(GRANT_QUEUE)
    const inTurn: BuildParts['inTurn'] = async (client, grant) => {
      const granted = await turns.run({ key: client.accountId, caller: client.id }, grant)
      if (granted === undefined) throw BUSY
      return granted
    }
    for (const type of GRANTS) {
      if (type.of === undefined) {
        const grant = type.build({ ...parts, inTurn })
        if (grant !== undefined) this.#secretless.set(type.name, grant)
      } else this.#ofClients.set(type.name, { of: type.of, grant: type.build({ ...parts, inTurn }) })
    }
  }

  /** The values of `grant_type`. */
  get names(): readonly string[] {
    return [...this.#ofClients.keys(), ...this.#secretless.keys()]
  }

  /** Rejects with a Refusal. */
  async grant(request: TokenRequest): Promise<GrantedTokens> {
    const { grant_type: name = '' } = request.body
    const secretless = this.#secretless.get(name)
    if (secretless !== undefined) return secretless(request)
    const client = await this.#authenticate(request)
    if (name === '') throw invalid('invalid_request', 'grant_type is missing')
    const { of, grant } = this.#ofClients.get(name) ?? {}
    if (grant === undefined) {
      const own = [...this.#ofClients].filter(([, type]) => type.of === client.kind).map(([own]) => own)
      throw invalid('unsupported_grant_type', `grant_type must be ${own.join(' or ')}`)
    }
    if (of === client.kind) return grant(request, client)
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
