import { expect, test } from 'vitest'
import { digest, hasDigest, newSecret, newToken } from '../../../../src/imds-api/auth/secrets.ts'

test('a secret has at least 128 bits and at most 35 characters, and each is another', () => {
  const secrets = Array.from({ length: 100 }, newSecret)
  expect(new Set(secrets).size).toBe(100)
  for (const secret of secrets) {
    expect(secret.length).toBeLessThanOrEqual(35)
    expect(Buffer.from(secret, 'base64url').length * 8).toBeGreaterThanOrEqual(128)
  }
})

test('a token has 256 bits, in the characters of RFC 6750', () => {
  expect(newToken()).toMatch(/^[A-Za-z0-9._~+/-]{43}$/)
  expect(newToken()).not.toBe(newToken())
})

test('a secret is compared with its digest', () => {
  expect(digest('a').toString('hex')).toBe('ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb')
  expect([hasDigest('a', digest('a')), hasDigest('b', digest('a')), hasDigest('', digest('a'))]).toEqual([
    true,
    false,
    false,
  ])
})
