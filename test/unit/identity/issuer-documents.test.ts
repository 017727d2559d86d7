import { createPublicKey, generateKeyPairSync } from 'node:crypto'
import { expect, test } from 'vitest'
import { issuerDocuments } from '../../../src/identity/issuer-documents.ts'

const pair = (publicKeyPem: string) => createPublicKey(publicKeyPem)
const PEM = { type: 'pkcs8', format: 'pem' } as const
const SPKI = { type: 'spki', format: 'pem' } as const

test('H4: the documents have each public key once, with its algorithm and its id, and no private part', async () => {
  const rsa = pair(
    generateKeyPairSync('rsa', { modulusLength: 2048, privateKeyEncoding: PEM, publicKeyEncoding: SPKI }).publicKey,
  )
  const ec = pair(
    generateKeyPairSync('ec', { namedCurve: 'P-256', privateKeyEncoding: PEM, publicKeyEncoding: SPKI }).publicKey,
  )
  const { configuration, keys } = await issuerDocuments('https://id.example.com/gb1', [rsa, ec, rsa])
  expect(configuration).toEqual({
    issuer: 'https://id.example.com/gb1',
    jwks_uri: 'https://id.example.com/gb1/jwks.json',
    response_types_supported: ['id_token'],
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ['RS256', 'ES256'],
  })
  expect(keys.keys.map((key) => Object.keys(key).sort())).toEqual([
    ['alg', 'e', 'kid', 'kty', 'n', 'use'],
    ['alg', 'crv', 'kid', 'kty', 'use', 'x', 'y'],
  ])
})
