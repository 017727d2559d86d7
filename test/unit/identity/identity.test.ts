import { createPrivateKey, X509Certificate } from 'node:crypto'
import { rmSync } from 'node:fs'
import { expect, test } from 'vitest'
import { buildIdentity } from '../../../src/identity/identity.ts'
import { KEY_KINDS, makeIdentity } from '../../support/fixtures/identity.ts'

const INSTANCE = { id: 'srv-a', account: 'acc-a', image: 'img-a', zone: { id: 'zon-a', handle: 'gb1-a' } }

function built(kind: keyof typeof KEY_KINDS, issuer: string | undefined) {
  const { directory, key, certificate } = makeIdentity(KEY_KINDS[kind])
  rmSync(directory, { recursive: true })
  const settings = { key: createPrivateKey(key), certificate: new X509Certificate(certificate), issuer }
  return buildIdentity(settings, () => 0)
}

test('there are documents with a key of RSA, and tokens with an issuer', () => {
  const has = (kind: keyof typeof KEY_KINDS, issuer: string | undefined) => {
    const { signer, issuerOf } = built(kind, issuer)
    return [signer !== undefined, issuerOf(INSTANCE) !== undefined]
  }
  expect(has('rsa', undefined)).toEqual([true, false])
  expect(has('rsa', 'https://id.example.com')).toEqual([true, true])
  expect(has('ec', 'https://id.example.com')).toEqual([false, true])
})
