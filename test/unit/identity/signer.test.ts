/** What is signed. openssl and jose are the judges of the bytes in test/contract/identity.test.ts. */
import { createPrivateKey, createPublicKey, verify, X509Certificate } from 'node:crypto'
import { rmSync } from 'node:fs'
import { decodeJwt, decodeProtectedHeader, jwtVerify } from 'jose'
import { expect, test } from 'vitest'
import { buildSigner, keyIdOf, TOKEN_SECONDS } from '../../../src/identity/signer.ts'
import { KEY_KINDS, makeIdentity } from '../../support/fixtures/identity.ts'

const NOW_MS = Date.UTC(2026, 10, 20, 15, 4, 5)
const SUBJECT = { id: 'srv-a', account: 'acc-a', image: 'img-a', zone: { id: 'zon-a', handle: 'gb1-a' } }

function aKey(kind: keyof typeof KEY_KINDS) {
  const { directory, key, certificate } = makeIdentity(KEY_KINDS[kind])
  rmSync(directory, { recursive: true })
  return { key: createPrivateKey(key), certificate: new X509Certificate(certificate) }
}

test('H3: equal documents have equal signatures, in lines of 76 characters, over their bytes', async () => {
  const identity = aKey('rsa')
  const signer = await buildSigner(identity)
  const signed = await signer.signDocument('{ "ü" : 1 }')
  expect(await signer.signDocument('{ "ü" : 1 }')).toEqual(signed)
  for (const text of Object.values(signed)) expect(text).toMatch(/^([A-Za-z0-9+/]{76}\n)*[A-Za-z0-9+/]{1,76}={0,2}$/)
  const signature = Buffer.from(signed.signature, 'base64')
  expect(verify('sha256', Buffer.from('{ "ü" : 1 }'), identity.certificate.publicKey, signature)).toBe(true)
  expect(Buffer.from(signed.pkcs7, 'base64').includes(signature)).toBe(true)
})

test.each([
  ['rsa', 'RS256'],
  ['ec', 'ES256'],
] as const)('H4: a token of a key of the kind %s is signed by %s, and lasts less than an hour', async (kind, alg) => {
  const identity = aKey(kind)
  const { key } = identity
  const signer = await buildSigner(identity)
  const mint = () => signer.mintToken('https://id.example.com/gb1', SUBJECT, 'https://vault', NOW_MS)
  const token = await mint()
  expect(decodeProtectedHeader(token)).toEqual({ alg, kid: await keyIdOf(createPublicKey(key)), typ: 'JWT' })
  const { jti, ...claims } = decodeJwt(token)
  const iat = NOW_MS / 1000
  expect(claims).toEqual({
    iss: 'https://id.example.com/gb1',
    sub: 'srv-a',
    aud: 'https://vault',
    iat,
    nbf: iat,
    exp: iat + TOKEN_SECONDS,
    account: 'acc-a',
    zone: 'gb1-a',
    image: 'img-a',
  })
  expect(TOKEN_SECONDS).toBeLessThanOrEqual(3600)
  expect(jti).toMatch(/^[0-9a-f-]{36}$/)
  await jwtVerify(token, createPublicKey(key), { currentDate: new Date(NOW_MS) })
  expect(await mint()).not.toBe(token)
})
