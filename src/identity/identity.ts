/** How the guests of this hypervisor prove what they are: signed documents and tokens (contract H3, H4). */
import type { DocumentSigner } from '../metadata/identity-document.ts'
import { algorithmOf, type IdentityKey } from './key.ts'
import type { Signer, TokenSubject } from './signer.ts'
import { Slots } from './slots.ts'

/** Of the four threads of Node's pool: changes of the view need the others to write the journal. */
const SIGNATURES_AT_ONCE = 2

/** The configuration. `issuer` undefined: there are no tokens. */
export interface IdentitySettings extends IdentityKey {
  readonly issuer: string | undefined
}

export interface Identity {
  /** Undefined: the key is not of RSA, so there are no documents. */
  readonly signer: DocumentSigner | undefined
  /** Mints a token for an instance. Undefined: there is no issuer. */
  readonly mint: ((subject: TokenSubject, audience: string) => Promise<string>) | undefined
  /** Loads the libraries. The first signature does so too. */
  load(): Promise<unknown>
}

/** Builds it. `wallMs`: the time since 1970. */
export function buildIdentity({ issuer, ...key }: IdentitySettings, wallMs: () => number): Identity {
  const slots = new Slots(SIGNATURES_AT_ONCE)
  let loading: Promise<Signer> | undefined
  const load = () => (loading ??= import('./signer.ts').then(({ buildSigner }) => buildSigner(key)))
  return {
    load,
    signer:
      algorithmOf(key.key) === 'RS256'
        ? { sign: (document) => slots.use(async () => (await load()).signDocument(document)) }
        : undefined,
    mint:
      issuer === undefined
        ? undefined
        : (subject, audience) => slots.use(async () => (await load()).mintToken(issuer, subject, audience, wallMs())),
  }
}
