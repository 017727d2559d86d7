import { createPrivateKey, generateKeyPairSync, X509Certificate } from 'node:crypto'
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
    const { signer, issuerOf } = built(kind, issuer)
    return [signer !== undefined, issuerOf(INSTANCE) !== undefined]
  }
  expect(has('rsa', undefined)).toEqual([true, false])
  expect(has('rsa', 'https://id.example.com')).toEqual([true, true])
  expect(has('ec', 'https://id.example.com')).toEqual([false, true])
})

const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const KEY = { signsFrom: '1970-01-01T00:00:00Z', privateKey: privateKey.export({ type: 'pkcs8', format: 'pem' }) }
const ISSUED = { issuer: 'https://api.example.com', audiences: ['vault'], lifetimeSeconds: 90, keys: [KEY] }
const NEVER = new AbortController().signal

test.each<[string, (identity: Identity, id: string, signal: AbortSignal) => Promise<unknown>]>([
  ['documents', ({ signer }, id) => signer!.sign('{}', id)],
  ['tokens of the hypervisor', ({ issuerOf }, id, signal) => issuerOf({ ...INSTANCE, id })!.mint('vault', signal)],
  [
    'tokens of an issuer in a record',
    ({ issuerOf }, id, signal) => issuerOf({ ...INSTANCE, id, identity: ISSUED })!.mint('vault', signal),
  ],
])('an instance that wants many %s hardly delays another one', async (_what, use) => {
  const identity = built('rsa', 'https://id.example.com')
  const signed: string[] = []
  const ids = [...Array<string>(50).fill('srv-many'), 'srv-one']
  await Promise.all(ids.map(async (id) => use(identity, id, NEVER).then(() => signed.push(id))))
  expect(signed.indexOf('srv-one')).toBeLessThan(25)
})

test.each([
  ['the hypervisor', {}],
  ['an issuer in a record', { identity: ISSUED }],
])('a token of %s that is no longer wanted is not signed', async (_whose, change) => {
  const { mint } = built('rsa', 'https://id.example.com').issuerOf({ ...INSTANCE, ...change })!
  const abort = new AbortController()
  const busy = [mint('vault', NEVER), mint('vault', NEVER)]
  const left = mint('vault', abort.signal)
  abort.abort()
  await expect(left).rejects.toThrow('no longer wanted')
  await Promise.all(busy)
})
