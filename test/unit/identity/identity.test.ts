import { createPrivateKey, X509Certificate } from 'node:crypto'
import { rmSync } from 'node:fs'
import { expect, test } from 'vitest'
import { buildIdentity, type Identity } from '../../../src/identity/identity.ts'
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
    const { signer, mintToken } = built(kind, issuer)
    return [signer !== undefined, mintToken !== undefined]
  }
  expect(has('rsa', undefined)).toEqual([true, false])
  expect(has('rsa', 'https://id.example.com')).toEqual([true, true])
  expect(has('ec', 'https://id.example.com')).toEqual([false, true])
})

const NEVER = new AbortController().signal

test.each<[string, (identity: Identity, id: string, signal: AbortSignal) => Promise<unknown>]>([
  ['documents', ({ signer }, id) => signer!.sign('{}', id)],
  ['tokens', ({ mintToken }, id, signal) => mintToken!({ ...INSTANCE, id }, 'vault', signal)],
])('an instance that wants many %s hardly delays another one', async (_what, use) => {
  const identity = built('rsa', 'https://id.example.com')
  const signed: string[] = []
  const ids = [...Array<string>(50).fill('srv-many'), 'srv-one']
  await Promise.all(ids.map(async (id) => use(identity, id, NEVER).then(() => signed.push(id))))
  expect(signed.indexOf('srv-one')).toBeLessThan(25)
})

test('a token that is no longer wanted is not signed', async () => {
  const { mintToken } = built('rsa', 'https://id.example.com')
  const mint = (signal: AbortSignal) => mintToken!(INSTANCE, 'vault', signal)
  const abort = new AbortController()
  const busy = [mint(NEVER), mint(NEVER)]
  const left = mint(abort.signal)
  abort.abort()
  await expect(left).rejects.toThrow('no longer wanted')
  await Promise.all(busy)
})
