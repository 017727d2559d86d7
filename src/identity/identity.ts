/** How the guests of this hypervisor prove what they are: signed documents and tokens (contract H3, H4). */
import { LRUCache } from 'lru-cache'
import type { DocumentSigner } from '../metadata/identity-document.ts'
import type { Instance } from '../metadata/instance.ts'
import { parseAccountKey, signingKey } from './account-keys.ts'
import { algorithmOf, type IdentityKey } from './key.ts'
import type { KeySigner, TokenSigner, TokenSubject } from './signer.ts'
import { FairQueue } from '../limits/fair-queue.ts'

/** Of the four threads of Node's pool: changes of the view need the others to write the journal. */
const SIGNATURES_AT_ONCE = 2
/** The most signers of keys in records: to make one takes a part of the time of a signature, on the thread of all guests. */
const MAX_ACCOUNT_SIGNERS = 256
/** The lifetime of a token of the hypervisor: long enough to log in, and as short as possible for one that is stolen. */
export const TOKEN_SECONDS = 600

/** The configuration. `issuer` undefined: this hypervisor issues no tokens. */
export interface IdentitySettings extends IdentityKey {
  readonly issuer: string | undefined
}

/** The issuer of the tokens of an instance. `audiences` undefined: any. */
export interface TokenIssuer {
  readonly audiences: readonly string[] | undefined
  /** Rejects if `signal` aborts while it waits for its turn. */
  readonly mint: (audience: string, signal: AbortSignal) => Promise<string>
}

/** What decides who issues the tokens of an instance, and what they say. */
export type Issued = TokenSubject & { readonly identity?: Instance['identity'] }

export interface Identity {
  /** Undefined: there is no key of RSA, so documents have no signatures. */
  readonly signer: DocumentSigner | undefined
  /** The issuer in the record of an instance, or else that of this hypervisor. Undefined: there are no tokens. */
  readonly issuerOf: (instance: Issued) => TokenIssuer | undefined
  /** Loads the libraries, also where only records have keys: an upgrade may replace the files before the first signature. */
  preload(): Promise<unknown>
}

/** Builds it. `own` undefined: this hypervisor has no key. `wallMs`: the time since 1970. */
export function buildIdentity(own: IdentitySettings | undefined, wallMs: () => number): Identity {
  const queue = new FairQueue({ all: { atOnce: SIGNATURES_AT_ONCE } })
  const inTurn = async <T>(task: () => Promise<T>, key: string, signal?: AbortSignal): Promise<T> => {
    const made = await queue.run({ key, ...(signal && { signal }) }, task)
    if (made === undefined) throw new Error('no longer wanted')
    return made
  }
  let loading: Promise<KeySigner> | undefined
  const loadOwn = ({ key, certificate }: IdentityKey) =>
    (loading ??= import('./signer.ts').then(({ buildSigner }) => buildSigner({ key, certificate })))
  const accountSigners = new LRUCache<string, Promise<TokenSigner>>({
    max: MAX_ACCOUNT_SIGNERS,
    memoMethod: async (privateKey) => (await import('./signer.ts')).buildTokenSigner(parseAccountKey(privateKey)),
  })
  return {
    preload: () => (own === undefined ? import('./signer.ts') : loadOwn(own)),
    signer:
      own !== undefined && algorithmOf(own.key) === 'RS256'
        ? { sign: (document, id) => inTurn(async () => (await loadOwn(own)).signDocument(document), id) }
        : undefined,
    issuerOf: (instance) => {
      const { identity } = instance
      if (identity !== undefined) {
        if (identity.keys.length === 0) return undefined // paused
        const mint = async (audience: string) => {
          const signer = await accountSigners.memo(signingKey(identity.keys, wallMs()))
          return signer.mintToken(identity, instance, audience, wallMs())
        }
        return {
          audiences: identity.audiences,
          mint: (audience, signal) => inTurn(() => mint(audience), instance.id, signal),
        }
      }
      const { issuer } = own ?? {}
      return own === undefined || issuer === undefined
        ? undefined
        : {
            audiences: undefined,
            mint: (audience, signal) => {
              const terms = { issuer, lifetimeSeconds: TOKEN_SECONDS }
              const mint = async () => (await loadOwn(own)).mintToken(terms, instance, audience, wallMs())
              return inTurn(mint, instance.id, signal)
            },
          }
    },
  }
}
