import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createPrivateKey, generateKeyPairSync, X509Certificate } from 'node:crypto'
import { expect, test } from 'vitest'
import { makeCertificate } from '../../../src/identity/certificate.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

const NOW_MS = Date.UTC(2026, 10, 20, 15, 4, 5)
const PEM = { type: 'pkcs8', format: 'pem' } as const
const SPKI = { type: 'spki', format: 'pem' } as const

test.each([
  ['RSA', generateKeyPairSync('rsa', { modulusLength: 2048, privateKeyEncoding: PEM, publicKeyEncoding: SPKI })],
  ['EC', generateKeyPairSync('ec', { namedCurve: 'P-256', privateKeyEncoding: PEM, publicKeyEncoding: SPKI })],
])('openssl accepts a certificate of a key of the kind %s, self-signed, for ten years', (_kind, { privateKey }) => {
  const key = createPrivateKey(privateKey)
  const pem = makeCertificate(key, NOW_MS)
  const certificate = new X509Certificate(pem)
  expect(certificate.checkPrivateKey(key) && certificate.verify(certificate.publicKey)).toBe(true)
  expect([certificate.validFrom, certificate.validTo]).toEqual(['Nov 20 15:04:05 2026 GMT', 'Nov 20 15:04:05 2036 GMT'])
  expect(certificate.ca).toBe(false)
  const shown = execFileSync('openssl', ['x509', '-noout', '-text'], { input: pem }).toString()
  expect(shown).toMatch(/Basic Constraints: critical\s+CA:FALSE\s+X509v3 Key Usage: critical\s+Digital Signature\n/)
  expect(shown).toMatch(/Version: 3/)
  const directory = temporaryDirectory()
  const file = join(directory, 'certificate.pem')
  writeFileSync(file, pem)
  execFileSync('openssl', ['verify', '-CAfile', file, '-attime', String(NOW_MS / 1000), file], { stdio: 'pipe' })
})

test('two certificates have different names and serial numbers', () => {
  const key = createPrivateKey(
    generateKeyPairSync('ec', { namedCurve: 'P-256', privateKeyEncoding: PEM, publicKeyEncoding: SPKI }).privateKey,
  )
  const [a, b] = [0, 1].map(() => new X509Certificate(makeCertificate(key, NOW_MS)))
  expect(a!.subject).toBe(a!.issuer)
  expect(a!.subject).not.toBe(b!.subject)
  expect(a!.serialNumber).not.toBe(b!.serialNumber)
})
