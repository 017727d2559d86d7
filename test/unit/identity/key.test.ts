import { generateKeyPairSync } from 'node:crypto'
import { rmSync } from 'node:fs'
import { expect, test } from 'vitest'
import { algorithmOf, parseIdentityCertificate, parseIdentityKey } from '../../../src/identity/key.ts'
import { KEY_KINDS, makeIdentity } from '../../support/fixtures/identity.ts'

const PEM = { type: 'pkcs8', format: 'pem' } as const
const SPKI = { type: 'spki', format: 'pem' } as const
const rsa = (modulusLength: number) =>
  generateKeyPairSync('rsa', { modulusLength, privateKeyEncoding: PEM, publicKeyEncoding: SPKI }).privateKey
const ec = (namedCurve: string) =>
  generateKeyPairSync('ec', { namedCurve, privateKeyEncoding: PEM, publicKeyEncoding: SPKI }).privateKey

test.each([
  ['rsa', 'RS256'],
  ['ec', 'ES256'],
] as const)('a key of the kind %s and its certificate are accepted', (kind, algorithm) => {
  const files = makeIdentity(KEY_KINDS[kind])
  rmSync(files.directory, { recursive: true })
  const key = parseIdentityKey(files.key)
  const certificate = parseIdentityCertificate(files.certificate)
  if (!key.ok || !certificate.ok) throw new Error('not accepted')
  expect(algorithmOf(key.value)).toBe(algorithm)
  expect(certificate.value.checkPrivateKey(key.value)).toBe(true)
})

test.each<[string, string]>([
  ['a short RSA key', rsa(1024)],
  ['another curve', ec('P-384')],
  ['another kind of key', generateKeyPairSync('ed25519').privateKey.export(PEM)],
  [
    'a key with a passphrase',
    generateKeyPairSync('ec', {
      namedCurve: 'P-256',
      privateKeyEncoding: { ...PEM, cipher: 'aes-256-cbc', passphrase: 'secret' },
      publicKeyEncoding: SPKI,
    }).privateKey,
  ],
  ['no key', 'secret'],
  ['an empty file', ''],
])('a fault names the kinds of keys, and shows no part of the file: %s', (_what, text) => {
  const parsed = parseIdentityKey(text)
  expect(parsed).toMatchObject({ ok: false })
  expect(JSON.stringify(parsed)).toMatch(/RSA of 2048 to 4096 bits, or EC of the curve P-256/)
  for (const line of text.split('\n').filter((line) => line !== '' && !line.includes('-----')))
    expect(JSON.stringify(parsed)).not.toContain(line)
})

test('a text without a certificate is a fault', () => {
  expect(parseIdentityCertificate('secret')).toEqual({
    ok: false,
    faults: ['names a file that does not begin with a certificate in PEM'],
  })
})
