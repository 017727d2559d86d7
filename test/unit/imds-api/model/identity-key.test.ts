import { createPrivateKey, createPublicKey } from 'node:crypto'
import { expect, test } from 'vitest'
import { IDENTITY_ALGORITHMS, KeyMaker } from '../../../../src/imds-api/model/identity-key.ts'
import { algorithmOf } from '../../../../src/identity/key.ts'
import { keyIdOf } from '../../../../src/identity/signer.ts'

test.each(IDENTITY_ALGORITHMS)('a new key of %s, with its public half and its id', async (algorithm) => {
  const made = await new KeyMaker().make('acc-abcde', algorithm)
  const key = createPrivateKey(made.private_key)
  expect(made.algorithm).toBe(algorithm)
  expect(algorithmOf(key)).toBe(algorithm)
  expect(createPublicKey(made.public_key).equals(createPublicKey(key))).toBe(true)
  expect(made.kid).toBe(await keyIdOf(key))
  expect(made.public_key).not.toContain('PRIVATE')
})

test('an account waits for few of its keys, and delays that of another by one', async () => {
  const maker = new KeyMaker()
  const order: string[] = []
  const make = (account: string) =>
    maker.make(account, 'ES256').then(
      () => order.push(account),
      (error: unknown) => order.push(`${account}: ${(error as Error).message}`),
    )
  await Promise.all([...Array.from({ length: 5 }, () => make('acc-aaaaa')), make('acc-bbbbb')])
  const refused = 'acc-aaaaa: other keys of this account are being made: try again'
  expect(order).toEqual([refused, refused, 'acc-aaaaa', 'acc-bbbbb', 'acc-aaaaa', 'acc-aaaaa'])
})
