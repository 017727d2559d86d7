/**
 * Signs identity documents and tokens (contract H3, H4). Node does the work of the key in its pool of threads, so no
 * guest waits for the signature of another guest. The libraries take long to load: identity.ts loads this file late.
 */
import { calculateJwkThumbprint, exportJWK, SignJWT } from 'jose'
import { createPublicKey, randomUUID, sign, type KeyObject } from 'node:crypto'
import type { Signatures } from '../metadata/identity-document.ts'
import type { Instance } from '../metadata/instance.ts'
import { signedData, signerNameOf } from './cms.ts'
import { algorithmOf, type IdentityKey } from './key.ts'

/** What a token says about an instance. */
export type TokenSubject = Pick<Instance, 'id' | 'account' | 'image' | 'zone'>

/** The lifetime of a token: long enough to log in, and as short as possible for a stolen token. */
export const TOKEN_SECONDS = 600

export interface KeySigner {
  /** Mints a token of an instance for an audience. `nowMs`: since 1970. */
  mintToken(issuer: string, subject: TokenSubject, audience: string, nowMs: number): Promise<string>
  /** The key must be of RSA. */
  signDocument(document: string): Promise<Signatures>
}

/** Builds a signer. What depends only on the key is made here, since it takes as long as the rest. */
export async function buildSigner({ key, certificate }: IdentityKey): Promise<KeySigner> {
  const name = signerNameOf(certificate)
  const header = { alg: algorithmOf(key)!, kid: await keyIdOf(key), typ: 'JWT' }
  return {
    mintToken: async (issuer, { id, account, image, zone }, audience, nowMs) => {
      const nowSeconds = Math.floor(nowMs / 1000)
      return new SignJWT({ account, zone: zone.handle, image })
        .setProtectedHeader(header)
        .setIssuer(issuer)
        .setSubject(id)
        .setAudience(audience)
        .setIssuedAt(nowSeconds)
        .setNotBefore(nowSeconds)
        .setExpirationTime(nowSeconds + TOKEN_SECONDS)
        .setJti(randomUUID())
        .sign(key)
    },
    signDocument: async (document) => {
      const bytes = Buffer.from(document)
      const signature = await signInPool(bytes, key)
      return { signature: base64(signature), pkcs7: base64(signedData(name, bytes, signature)) }
    },
  }
}

/** The id of a key in tokens and in the issuer's documents: its thumbprint (RFC 7638). */
export async function keyIdOf(key: KeyObject): Promise<string> {
  return calculateJwkThumbprint(await exportJWK(key.type === 'private' ? createPublicKey(key) : key))
}

function signInPool(bytes: Uint8Array, key: KeyObject): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    sign('sha256', bytes, key, (error, signature) => {
      if (error instanceof Error) reject(error)
      else resolve(signature)
    })
  })
}

/** In lines of 76 characters, without a line break at the end, as on EC2. */
function base64(bytes: Uint8Array): string {
  return Buffer.from(bytes)
    .toString('base64')
    .replace(/.{76}(?!$)/g, '$&\n')
}
