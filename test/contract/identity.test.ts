/**
 * H3 and H4 of the contract: identity documents and tokens. The judges are openssl, and jose with the documents that the
 * issuer publishes. test/imdsd/identity.test.ts has the daemon with its files.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { createPrivateKey, X509Certificate } from 'node:crypto'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { jwtVerify } from 'jose'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { buildIdentity } from '../../src/identity/identity.ts'
import type { DocumentSigner, Signatures } from '../../src/metadata/identity-document.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import { makeIdentity } from '../support/fixtures/identity.ts'
import { aGuestServer, type TestGuest } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'

const TTL = 'x-aws-ec2-metadata-token-ttl-seconds'
const ISSUER = 'https://id.example.com/gb1'
const BASE = '/latest/dynamic/instance-identity'
const SIGNATURES = ['pkcs7', 'rsa2048', 'signature']
const LEAVES = ['document', ...SIGNATURES]
const TOKEN = `${BASE}/token?audience=vault`

const files = makeIdentity()
afterAll(() => rmSync(files.directory, { recursive: true }))
const identity = buildIdentity(
  { key: createPrivateKey(files.key), certificate: new X509Certificate(files.certificate), issuer: ISSUER },
  () => Date.now(),
)

/** A signer whose signatures the test makes. */
class StepSigner implements DocumentSigner {
  readonly documents: string[] = []
  #step = Promise.withResolvers<Signatures>()

  sign(document: string): Promise<Signatures> {
    this.documents.push(document)
    return this.#step.promise
  }

  async made(signature = 'signed'): Promise<void> {
    const step = this.#step
    this.#step = Promise.withResolvers()
    step.resolve({ signature, pkcs7: signature })
    await turns()
  }

  async failed(): Promise<void> {
    this.#step.reject(new Error('no thread'))
    this.#step = Promise.withResolvers()
    await turns()
  }
}

async function turns(): Promise<void> {
  for (let i = 0; i < 10; i++) await turn()
}

/** Asks, and gives what has been answered after some turns of the event loop. */
async function asked(guest: TestGuest, url: string, from = '10.0.0.2') {
  let response: { status: number; text: string } | undefined
  void guest.ask({ url, from }).then((got) => {
    response = got
  })
  await turns()
  return () => response && [response.status, response.text]
}

const sessionToken = async (guest: TestGuest) =>
  (await guest.ask({ method: 'PUT', url: '/latest/api/token', headers: { [TTL]: '60' } })).text

describe('H3: the document of an instance', () => {
  let guest: TestGuest
  beforeEach(() => {
    guest = aGuestServer({ provider: { signer: identity.signer! } })
    guest.put(anInstance({ architecture: 'x86_64', launchTime: '2026-11-20T15:04:05Z' }))
  })
  const get = async (leaf: string) => {
    const { status, headers, text } = await guest.ask(`${BASE}/${leaf}`)
    expect([leaf, status, headers['content-type']]).toEqual([leaf, 200, 'text/plain'])
    return text
  }

  test('is listed with its signatures from 2009-04-04 on, and every listed leaf answers', async () => {
    for (const version of VERSIONS) {
      const root = (await guest.ask(`/${version}/`)).text.split('\n')
      const has = version >= '2009-04-04'
      expect([version, root.includes('dynamic')]).toEqual([version, has])
      const listing = await guest.ask(`/${version}/dynamic/instance-identity`)
      expect([version, listing.status]).toEqual([version, has ? 200 : 404])
      for (const leaf of has ? listing.text.split('\n') : [])
        expect((await guest.ask(`/${version}/dynamic/instance-identity/${leaf}`)).status).toBe(200)
    }
    expect((await guest.ask('/latest/dynamic/')).text).toBe('instance-identity/')
    expect((await guest.ask(BASE)).text.split('\n')).toEqual(LEAVES)
    expect((await guest.ask(`${BASE}/document/`)).status).toBe(200)
  })

  test('has the same bytes at each request, and other ones after a change of what it says', async () => {
    const all = async () => Promise.all(LEAVES.map(get))
    const before = await all()
    expect(await all()).toEqual(before)
    guest.put(anInstance({ revision: 2, architecture: 'x86_64', launchTime: '2026-11-20T15:04:05Z', tags: { a: 'b' } }))
    expect(await all()).toEqual(before)
    guest.put(anInstance({ revision: 3, image: 'img-other' }))
    const after = await all()
    expect(after.filter((text, i) => text === before[i])).toEqual([])
    expect(JSON.parse(after[0]!)).toMatchObject({ imageId: 'img-other' })
  })

  test('is verified by openssl: the signature, and both forms of PKCS#7, by the recipes of EC2', async () => {
    const [document, pkcs7, rsa2048, signature] = (await Promise.all(LEAVES.map(get))) as [string, ...string[]]
    const path = (name: string) => join(files.directory, name)
    writeFileSync(path('document'), document)
    writeFileSync(path('signature'), Buffer.from(signature!, 'base64'))
    writeFileSync(
      path('public'),
      new X509Certificate(files.certificate).publicKey.export({ type: 'spki', format: 'pem' }),
    )
    const openssl = (...args: string[]) =>
      execFileSync('openssl', args, { stdio: ['ignore', 'pipe', 'ignore'] }).toString()
    expect(
      openssl('dgst', '-sha256', '-verify', path('public'), '-signature', path('signature'), path('document')),
    ).toBe('Verified OK\n')
    expect(rsa2048).toBe(pkcs7)
    writeFileSync(path('p7'), `-----BEGIN PKCS7-----\n${pkcs7!}\n-----END PKCS7-----\n`)
    const from = ['-verify', '-in', path('p7'), '-inform', 'PEM', '-certfile', files.certificateFile]
    for (const command of ['smime', 'cms']) {
      expect(openssl(command, ...from, '-noverify')).toBe(document)
      expect(openssl(command, ...from, '-CAfile', files.certificateFile)).toBe(document)
    }
    const other = makeIdentity()
    const foreign = [...from.slice(0, -1), other.certificateFile, '-noverify']
    expect(spawnSync('openssl', ['smime', ...foreign]).status).not.toBe(0)
    rmSync(other.directory, { recursive: true })
  })

  test('is alone without a key, for every guest: a detector of the region crashes on a 404', async () => {
    const without = aGuestServer()
    without.put(anInstance({ architecture: 'x86_64', launchTime: '2026-11-20T15:04:05Z' }))
    const { status, text, headers } = await without.ask(`${BASE}/document`)
    expect([status, text]).toEqual([200, await get('document')])
    const again = { url: `${BASE}/document`, headers: { 'if-none-match': String(headers['etag']) } }
    expect((await without.ask(again)).status).toBe(304)
    for (const version of VERSIONS) {
      const answer = await without.ask(`/${version}/dynamic/instance-identity/`)
      const has = version >= '2009-04-04'
      expect([version, answer.status, has ? answer.text : '']).toEqual([
        version,
        has ? 200 : 404,
        has ? 'document' : '',
      ])
      expect((await without.ask(`/${version}/`)).text.split('\n').includes('dynamic')).toBe(has)
    }
    for (const leaf of SIGNATURES) expect((await without.ask(`${BASE}/${leaf}`)).status).toBe(404)
    const subtree = JSON.parse((await without.ask('/latest/?recursive=true')).text) as Record<string, object>
    expect(subtree['dynamic']).toEqual({ 'instance-identity': { document: text } })
  })

  test('is part of ?recursive=true of a version, and has entity tags', async () => {
    const subtree = JSON.parse((await guest.ask('/latest/?recursive=true')).text) as Record<string, object>
    const leaves = Object.fromEntries(await Promise.all(LEAVES.map(async (leaf) => [leaf, await get(leaf)] as const)))
    expect(subtree['dynamic']).toEqual({ 'instance-identity': leaves })
    const { headers } = await guest.ask(`${BASE}/signature`)
    const url = `${BASE}/signature`
    expect((await guest.ask({ url, headers: { 'if-none-match': String(headers['etag']) } })).status).toBe(304)
  })
})

describe('H3: a signature', () => {
  let signer: StepSigner
  let guest: TestGuest
  beforeEach(() => {
    signer = new StepSigner()
    guest = aGuestServer({ provider: { signer } })
    guest.put(anInstance())
  })

  test('is made at the first request, once for each state of the record', async () => {
    guest.put(anInstance({ revision: 2 }))
    await guest.ask('/latest/meta-data/instance-id')
    await guest.ask('/latest/')
    expect(signer.documents).toEqual([])
    const answers = await Promise.all(SIGNATURES.map((leaf) => asked(guest, `${BASE}/${leaf}`)))
    expect([signer.documents.length, answers.map((answer) => answer())]).toEqual([1, Array(3).fill(undefined)])
    await signer.made()
    expect(answers.map((answer) => answer()?.[0])).toEqual(Array(3).fill(200))
    expect([(await guest.ask(`${BASE}/signature`)).text, signer.documents.length]).toEqual(['signed', 1])
  })

  test('delays no other guest, and no other request of this guest', async () => {
    const nic = { id: 'int-b', macAddress: '02:24:19:00:00:0b', ipv4Addresses: ['10.0.0.6/30'] }
    guest.put(anInstance({ id: 'srv-other', interfaces: [nic] }))
    const answer = await asked(guest, '/2021-01-03/dynamic/?recursive=true')
    const others = ['/', '/latest/', '/latest/meta-data/?recursive=true', '/latest/meta-data/instance-id']
    for (const path of [...others, `${BASE}/document`, BASE, '/latest/dynamic'])
      expect([path, (await guest.ask(path)).status]).toEqual([path, 200])
    expect((await guest.ask({ url: '/latest/meta-data/instance-id', from: '10.0.0.6' })).text).toBe('srv-other')
    expect(answer()).toBe(undefined)
  })

  test('that fails gives 503, and is tried again at the next request', async () => {
    const answer = await asked(guest, `${BASE}/signature`)
    await signer.failed()
    expect(answer()?.[0]).toBe(503)
    expect(guest.meter.counts()).toMatchObject([{ route: '/{version}/dynamic', reason: 'not-signed', count: 1 }])
    const again = await asked(guest, `${BASE}/signature`)
    await signer.made()
    expect(again()).toEqual([200, 'signed'])
  })

  test.each<[string, (guest: TestGuest) => void, number]>([
    [
      'E3: when the address changes its owner',
      (of) => {
        of.view.remove('srv-abcde', 1)
        of.put(anInstance({ id: 'b' }))
      },
      503,
    ],
    ['E3: when the instance leaves the view', (of) => of.view.remove('srv-abcde', 1), 503],
    ['D6: when the endpoint is disabled', (of) => of.put(anInstance({ options: { httpEndpoint: 'disabled' } })), 403],
    ['D4: when tokens are required', (of) => of.put(anInstance({ options: { httpTokens: 'required' } })), 401],
  ])('is not given to a guest that loses its right meanwhile, %s', async (_when, change, status) => {
    const answer = await asked(guest, `${BASE}/signature`)
    change(guest)
    await signer.made()
    expect(answer()?.[0]).toBe(status)
  })

  test('H1: a change of the document is waited for until it is signed', async () => {
    const first = await asked(guest, `${BASE}/signature`)
    await signer.made('first')
    expect(first()).toEqual([200, 'first'])
    const [value, root] = await Promise.all(
      [`${BASE}/signature?wait_for_change=true`, '/latest/?recursive=true&wait_for_change=true'].map((url) =>
        asked(guest, url),
      ),
    )
    expect(guest.held.size).toBe(2)
    guest.put(anInstance({ revision: 2, image: 'img-other' }))
    await turns()
    expect([value!(), root!()]).toEqual([undefined, undefined])
    await signer.made('second')
    expect([value!(), root!()?.[0], guest.held.size]).toEqual([[200, 'second'], 200, 0])
  })

  test('H1: a request that waits gets the value of a record that is replaced while the former one is signed', async () => {
    const answer = await asked(guest, `${BASE}/signature?wait_for_change=true`)
    guest.put(anInstance({ revision: 2, image: 'img-other' }))
    await signer.made('first')
    expect(answer()).toBeUndefined()
    await signer.made('second')
    expect([answer(), guest.held.size]).toEqual([[200, 'second'], 0])
  })
})

describe('H4: an identity token', () => {
  let guest: TestGuest
  beforeEach(() => {
    guest = aGuestServer({ mintToken: identity.mintToken })
    guest.put(anInstance())
  })

  test('is a JWT for the audience that its verifier accepts, and that says what the instance is', async () => {
    const headers = { 'x-aws-ec2-metadata-token': await sessionToken(guest) }
    const response = await guest.ask({ url: TOKEN, headers })
    expect([response.status, response.headers['content-type']]).toEqual([200, 'text/plain'])
    expect([response.headers['cache-control'], response.headers['etag']]).toEqual(['no-store', undefined])
    const { publicKey } = new X509Certificate(files.certificate)
    const { payload } = await jwtVerify(response.text, publicKey, { issuer: ISSUER, audience: 'vault' })
    expect(payload).toMatchObject({ sub: 'srv-abcde', account: 'acc-xyz12', zone: 'gb1-a', image: 'img-4ltjf' })
    expect(payload.exp! - payload.iat!).toBeLessThanOrEqual(3600)
    await expect(jwtVerify(response.text, publicKey, { audience: 'other' })).rejects.toThrow('aud')
    expect((await guest.ask({ url: TOKEN, headers })).text).not.toBe(response.text)
    const waiting = await guest.ask({ url: `${TOKEN}&wait_for_change=true&recursive=true`, headers })
    expect([waiting.status, guest.held.size]).toEqual([200, 0])
  })

  const ROWS: [string, string, string, boolean, number][] = [
    ['without a session token', 'GET', TOKEN, false, 401],
    ['without an audience', 'GET', `${BASE}/token`, true, 400],
    ['with two audiences', 'GET', `${TOKEN}&audience=b`, true, 400],
    ['with an empty audience', 'GET', `${BASE}/token?audience=`, true, 400],
    ['with a space in the audience', 'GET', `${BASE}/token?audience=a%20b`, true, 400],
    ['with an audience that is too long', 'GET', `${BASE}/token?audience=${'x'.repeat(256)}`, true, 400],
    ['by POST', 'POST', TOKEN, true, 405],
    ['of a dated version', 'GET', TOKEN.replace('latest', '2021-01-03'), true, 404],
  ]
  test.each(ROWS)('is refused %s', async (_what, method, url, hasToken, status) => {
    const headers = hasToken ? { 'x-aws-ec2-metadata-token': await sessionToken(guest) } : undefined
    expect((await guest.ask({ method, url, ...(headers && { headers }) })).status).toBe(status)
  })

  test('that nobody waits for any more leaves the queue of signatures', async () => {
    const signals: AbortSignal[] = []
    const busy = aGuestServer({
      mintToken: (_instance, _audience, signal) => {
        signals.push(signal)
        return new Promise(() => undefined)
      },
    })
    busy.put(anInstance())
    const headers = { 'x-aws-ec2-metadata-token': await sessionToken(busy) }
    expect((await busy.ask({ url: TOKEN, headers })).status).toBe(503)
    expect(signals.map(({ aborted }) => aborted)).toEqual([true])
  })

  test('is never listed, and never part of ?recursive=true', async () => {
    const both = aGuestServer({ mintToken: identity.mintToken, provider: { signer: identity.signer! } })
    both.put(anInstance())
    expect((await both.ask(BASE)).text.split('\n')).toEqual(LEAVES)
    expect((await both.ask('/latest/?recursive=true')).text).not.toContain('"token"')
    expect((await guest.ask(BASE)).text).toBe('document')
  })

  test('is 404 without an issuer', async () => {
    const without = aGuestServer({ provider: { signer: identity.signer! } })
    without.put(anInstance())
    const headers = { 'x-aws-ec2-metadata-token': await sessionToken(without) }
    expect((await without.ask({ url: TOKEN, headers })).status).toBe(404)
  })

  test('F1: takes 20 more requests from the share of its guest', async () => {
    const shared = aGuestServer({
      mintToken: identity.mintToken,
      share: { burst: 1_000, perSecond: 0, connections: Infinity },
    })
    shared.put(anInstance())
    const headers = { 'x-aws-ec2-metadata-token': await sessionToken(shared) }
    let served = 0
    while ((await shared.ask({ url: TOKEN, headers })).status === 200) served += 1
    expect(served).toBe(Math.ceil(999 / 21))
  })
})
