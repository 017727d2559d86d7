/** Keys of the issuer of an account: how they are made, and when they sign and retire. */
import { createPublicKey, generateKeyPair } from 'node:crypto'
import { promisify } from 'node:util'
import { keyIdOf } from '../../identity/signer.ts'
import { FairQueue, type FairQueueLimits } from '../../limits/fair-queue.ts'
import { shed } from './refusal.ts'

/** What signs identity tokens: JWA (RFC 7518, 3.1). */
export const IDENTITY_ALGORITHMS = ['ES256', 'RS256'] as const
export type IdentityAlgorithm = (typeof IDENTITY_ALGORITHMS)[number]

/** A new key, in PEM. */
export interface NewKey {
  readonly kid: string
  readonly algorithm: IdentityAlgorithm
  readonly private_key: string
  readonly public_key: string
}

/** How long verifiers may keep `jwks.json`. */
export const JWKS_MAX_AGE_SECONDS = 300
/** A key signs so long after it was published: all verifiers know it then. */
export const SIGNS_AFTER_MS = 2 * JWKS_MAX_AGE_SECONDS * 1000
/** The key before it retires so long after that: a hypervisor without its store may still sign with it. */
export const RETIRES_AFTER_MS = 24 * 3_600_000

const generate = promisify(generateKeyPair)

/** Keys are made one at a time, since one of RSA takes tenths of a second. Accounts take turns. */
const KEY_QUEUE: FairQueueLimits = { atOnce: 1, maxWaiting: 2, timeoutMs: 10_000, all: { atOnce: 1 } }

export class KeyMaker {
  readonly #queue = new FairQueue(KEY_QUEUE)

  /** Makes a key of an account in Node's pool of threads. Rejects with a Refusal if too many of it wait. */
  async make(accountId: string, algorithm: IdentityAlgorithm): Promise<NewKey> {
    const key = await this.#queue.run({ key: accountId }, () => generateKey(algorithm))
    if (key === undefined) throw shed('changes', 'other keys of this account are being made: try again')
    return key
  }
}

async function generateKey(algorithm: IdentityAlgorithm): Promise<NewKey> {
  const { privateKey } =
    algorithm === 'ES256'
      ? await generate('ec', { namedCurve: 'P-256' })
      : await generate('rsa', { modulusLength: 2048 })
  return {
    kid: await keyIdOf(privateKey),
    algorithm,
    private_key: privateKey.export({ type: 'pkcs8', format: 'pem' }),
    public_key: createPublicKey(privateKey).export({ type: 'spki', format: 'pem' }),
  }
}
