/** How the guests of this hypervisor prove what they are: signed documents and tokens (contract H3, H4). */
import type { DocumentSigner } from '../metadata/identity-document.ts'
import { algorithmOf, type IdentityKey } from './key.ts'
import type { KeySigner, TokenSubject } from './signer.ts'
import { FairQueue } from '../limits/fair-queue.ts'

/** Of the four threads of Node's pool: changes of the view need the others to write the journal. */
const SIGNATURES_AT_ONCE = 2

/** The configuration. `issuer` undefined: this hypervisor issues no tokens. */
export interface IdentitySettings extends IdentityKey {
  readonly issuer: string | undefined
}

/** Mints an identity token of an instance for an audience. Rejects if `signal` aborts while it waits for its turn. */
export type MintToken = (subject: TokenSubject, audience: string, signal: AbortSignal) => Promise<string>

export interface Identity {
  /** Undefined: there is no key of RSA, so documents have no signatures. */
  readonly signer: DocumentSigner | undefined
  /** Undefined: there is no issuer. */
  readonly mintToken: MintToken | undefined
  /** Loads the libraries: an upgrade may replace the files before the first signature. */
  preload(): Promise<unknown>
}

/** Builds it. `own` undefined: this hypervisor has no key. `wallMs`: the time since 1970. */
export function buildIdentity(own: IdentitySettings | undefined, wallMs: () => number): Identity {
  if (own === undefined) return { signer: undefined, mintToken: undefined, preload: () => Promise.resolve() }
  const { key, certificate, issuer } = own
  const queue = new FairQueue({ all: { atOnce: SIGNATURES_AT_ONCE } })
  let loading: Promise<KeySigner> | undefined
  const load = () => (loading ??= import('./signer.ts').then(({ buildSigner }) => buildSigner({ key, certificate })))
  const inTurn = async <T>(id: string, sign: (signer: KeySigner) => Promise<T>, signal?: AbortSignal): Promise<T> => {
    const made = await queue.run({ key: id, ...(signal && { signal }) }, async () => sign(await load()))
    if (made === undefined) throw new Error('no longer wanted')
    return made
  }
  return {
    preload: load,
    signer:
      algorithmOf(key) === 'RS256'
        ? { sign: (document, id) => inTurn(id, (signer) => signer.signDocument(document)) }
        : undefined,
    mintToken:
      issuer === undefined
        ? undefined
        : (subject, audience, signal) =>
            inTurn(subject.id, (signer) => signer.mintToken(issuer, subject, audience, wallMs()), signal),
  }
}
