/**
 * The key of a hypervisor with which guests prove what they are, and its certificate. A key of RSA signs identity
 * documents and tokens, one of the curve P-256 only tokens.
 */
import { createPrivateKey, X509Certificate, type KeyObject } from 'node:crypto'
import type { Parsed } from '../metadata/parsed.ts'

/** Sizes of RSA keys: with less a signature is weak, with more it takes too long. */
const RSA_BITS = { least: 2048, most: 4096 }

export interface IdentityKey {
  readonly key: KeyObject
  readonly certificate: X509Certificate
}

/** How a key signs tokens: RS256 or ES256 of JWA (RFC 7518, 3.1). Undefined: it is of another kind. */
export function algorithmOf({ asymmetricKeyType, asymmetricKeyDetails }: KeyObject): 'RS256' | 'ES256' | undefined {
  const { modulusLength = 0, namedCurve } = asymmetricKeyDetails ?? {}
  if (asymmetricKeyType === 'ec' && namedCurve === 'prime256v1') return 'ES256'
  const isRsa = asymmetricKeyType === 'rsa' && modulusLength >= RSA_BITS.least && modulusLength <= RSA_BITS.most
  return isRsa ? 'RS256' : undefined
}

/** Parses a private key in PEM. The fault never contains a part of the text. */
export function parseIdentityKey(text: string): Parsed<KeyObject, string> {
  try {
    const key = createPrivateKey(text)
    if (algorithmOf(key) !== undefined) return { ok: true, value: key }
  } catch {
    // no key, or one with a passphrase
  }
  return {
    ok: false,
    faults: [
      `names a file that is not one private key in PEM without a passphrase: RSA of ${RSA_BITS.least} to ` +
        `${RSA_BITS.most} bits, or EC of the curve P-256 (docs/configuration.md#identity-keys makes one)`,
    ],
  }
}

/** Parses the first certificate of a text in PEM. */
export function parseIdentityCertificate(text: string): Parsed<X509Certificate, string> {
  try {
    return { ok: true, value: new X509Certificate(text) }
  } catch {
    return { ok: false, faults: ['names a file that does not begin with a certificate in PEM'] }
  }
}
