import { createPrivateKey, createPublicKey } from 'node:crypto'
import { expect, test } from 'vitest'
import { IDENTITY_ALGORITHMS, KeyMaker } from '../../../../src/imds-api/model/identity-key.ts'
import { algorithmOf } from '../../../../src/identity/key.ts'
import { keyIdOf } from '../../../../src/identity/signer.ts'

test.each(IDENTITY_ALGORITHMS)('a new key of %s, with its public half and its id', async (algorithm) => {
  const made = await new KeyMaker().make(algorithm)
  const key = createPrivateKey(made.private_key)
  expect(made.algorithm).toBe(algorithm)
  expect(algorithmOf(key)).toBe(algorithm)
  expect(createPublicKey(made.public_key).equals(createPublicKey(key))).toBe(true)
  expect(made.kid).toBe(await keyIdOf(key))
  expect(made.public_key).not.toContain('PRIVATE')
})
