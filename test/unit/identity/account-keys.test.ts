import { generateKeyPairSync } from 'node:crypto'
import { expect, test } from 'vitest'
import { parseAccountKey, signingKey } from '../../../src/identity/account-keys.ts'

function aKey(signsFrom: string) {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  return { signsFrom, privateKey: privateKey.export({ type: 'pkcs8', format: 'pem' }) }
}

const [old, next] = [aKey('2026-11-20T12:00:00+01:00'), aKey('2026-11-20T12:00:00Z')]

test.each([
  ['before both have begun, the first', '2026-11-20T10:59:59Z', old],
  ['once it has begun, the first', '2026-11-20T11:00:00Z', old],
  ['once the second has begun, the second', '2026-11-20T12:00:00Z', next],
])('of two keys, this one signs: %s', (_name, now, expected) => {
  for (const keys of [
    [old, next],
    [next, old],
  ]) {
    expect(signingKey(keys, Date.parse(now))).toBe(expected.privateKey)
  }
})

test('a text that is no key is an error without a part of it', () => {
  expect(() => parseAccountKey('S3CRET')).toThrow(/^the record's identity key is not a private key in PEM$/)
})
