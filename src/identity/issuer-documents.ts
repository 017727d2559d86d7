/**
 * The public documents of an issuer, from which verifiers of identity tokens get its keys (OpenID Connect Discovery 1.0,
 * 4). imds-api serves them for its region; `imdsctl jwks` writes them as files.
 */
import { exportJWK, type JWK } from 'jose'
import type { KeyObject } from 'node:crypto'
import { algorithmOf } from './key.ts'
import { keyIdOf } from './signer.ts'

/** The documents by their paths below the URL of the issuer, as JSON. */
export const ISSUER_PATHS = { keys: 'jwks.json', configuration: '.well-known/openid-configuration' } as const

/** What a verifier needs besides the keys. */
interface Configuration {
  readonly issuer: string
  readonly jwks_uri: string
  readonly response_types_supported: readonly string[]
  readonly subject_types_supported: readonly string[]
  readonly id_token_signing_alg_values_supported: readonly string[]
}

/** The documents for some public keys, which are of kinds that `algorithmOf` knows. A key is listed once. */
export async function issuerDocuments(
  issuer: string,
  publicKeys: readonly KeyObject[],
): Promise<{ readonly configuration: Configuration; readonly keys: { readonly keys: readonly JWK[] } }> {
  const all = await Promise.all(
    publicKeys.map(async (key) => ({
      ...(await exportJWK(key)),
      use: 'sig',
      alg: algorithmOf(key)!,
      kid: await keyIdOf(key),
    })),
  )
  const keys = [...new Map(all.map((key) => [key.kid, key])).values()]
  return {
    configuration: {
      issuer,
      jwks_uri: `${issuer}/${ISSUER_PATHS.keys}`,
      response_types_supported: ['id_token'],
      subject_types_supported: ['public'],
      id_token_signing_alg_values_supported: [...new Set(keys.map(({ alg }) => alg))],
    },
    keys: { keys },
  }
}
