/**
 * H1 and H2 of the contract: entity tags, requests that wait for a change, and subtrees as JSON. Time limits, closed
 * connections and the stop of a daemon are in test/imdsd/waiting.test.ts.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { beforeEach, describe, expect, test, vi } from 'vitest'
import { aGuestServer, type Injected, type TestGuest } from '../support/fixtures/guest-server.ts'
import { aFullInstance, anInstance } from '../support/fixtures/instance.ts'

const TAG = '/latest/meta-data/tags/instance/state'
const TTL = 'x-aws-ec2-metadata-token-ttl-seconds'
const OTHER = { id: 'srv-other', revision: 1 }

function tagged(state: string | undefined, change: Record<string, unknown> = {}): Record<string, unknown> {
  const { options = {}, ...rest } = change
  const tags = state === undefined ? { kept: 'x' } : { kept: 'x', state }
  return anInstance({ tags, options: { instanceMetadataTags: 'enabled', ...(options as object) }, ...rest })
}

let guest: TestGuest
beforeEach(() => {
  guest = aGuestServer()
  guest.put(tagged('old'))
})

const etagOf = async (url: string) => String((await guest.ask(url)).headers['etag'])

/** Sends a request that waits. `settled` returns its response once it has one. */
async function waiting(
  url: string,
  headers: Record<string, string> = {},
): Promise<() => Promise<Injected | undefined>> {
  const before = guest.held.size
  let response: Injected | undefined
  void guest.ask({ url, headers }).then((got) => {
    response = got
  })
  for (let i = 0; i < 10 && guest.held.size === before; i++) await turn()
  expect(guest.held.size, 'held requests').toBe(before + 1)
  return async () => {
    for (let i = 0; i < 10; i++) await turn()
    return response
  }
}

describe('H1: entity tags', () => {
  const VALUES = ['/', '/latest/', '/latest/meta-data/', '/latest/meta-data/instance-id', '/latest/user-data']

  test.each(VALUES)('%s has a strong one, that HEAD has too, and that gets 304', async (url) => {
    guest.put(anInstance({ revision: 2 }), Buffer.from('#!/bin/sh\n'))
    const etag = await etagOf(url)
    expect(etag).toMatch(/^"[\w-]{22,64}"$/)
    expect((await guest.ask({ method: 'HEAD', url })).headers['etag']).toBe(etag)
    for (const ifNoneMatch of [etag, `"x", ${etag}`, `W/${etag}`, '*']) {
      const response = await guest.ask({ url, headers: { 'if-none-match': ifNoneMatch } })
      expect([ifNoneMatch, response.status, response.text]).toEqual([ifNoneMatch, 304, ''])
      expect(response.headers['etag']).toBe(etag)
      expect(response.headers['content-length']).toBeUndefined()
    }
    expect((await guest.ask({ url, headers: { 'if-none-match': '"x"' } })).status).toBe(200)
    expect(guest.meter.counts().map(({ method, status, reason, count }) => [method, status, reason, count])).toEqual([
      ['GET', 200, 'served', 2],
      ['GET', 304, 'served', 4],
      ['HEAD', 200, 'served', 1],
    ])
  })

  test('equal values have equal ones, other values others, in each version', async () => {
    const before = await etagOf(TAG)
    guest.put(tagged('new', { revision: 2 }))
    expect(await etagOf(TAG)).not.toBe(before)
    guest.put(tagged('old', { revision: 3 }))
    expect(await etagOf(TAG)).toBe(before)
    expect(await etagOf('/1.0/meta-data/')).not.toBe(await etagOf('/latest/meta-data/'))
  })

  test('user-data has its digest; a token, a refusal and an unknown path have none', async () => {
    guest.put(anInstance({ revision: 2 }), Buffer.from('x'))
    expect(await etagOf('/latest/user-data')).toBe('"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"')
    const token = await guest.ask({ method: 'PUT', url: '/latest/api/token', headers: { [TTL]: '60' } })
    expect([token.status, token.headers['etag']]).toEqual([200, undefined])
    expect((await guest.ask('/latest/meta-data/none')).headers['etag']).toBeUndefined()
  })
})

describe('H1: wait_for_change', () => {
  test('is answered when the value changes, and not by a change of another value', async () => {
    const settled = await waiting(`${TAG}?wait_for_change=true&last_etag=${await etagOf(TAG)}`)
    guest.put(tagged('old', { revision: 2, tags: { state: 'old', kept: 'y' } }))
    expect(await settled()).toBeUndefined()
    guest.put(tagged('new', { revision: 3 }))
    expect(await settled()).toMatchObject({ status: 200, text: 'new', headers: { etag: await etagOf(TAG) } })
    expect(guest.held.size).toBe(0)
  })

  test('without last_etag waits for the next change', async () => {
    const settled = await waiting(`${TAG}?wait_for_change=true`)
    guest.put(tagged('new', { revision: 2 }))
    expect(await settled()).toMatchObject({ status: 200, text: 'new' })
  })

  test.each(['0', 'x', '%22x%22'])('is answered at once if last_etag is another: %s', async (last) => {
    expect(await guest.ask(`${TAG}?wait_for_change=true&last_etag=${last}`)).toMatchObject({ status: 200, text: 'old' })
  })

  test('takes last_etag with and without quotes', async () => {
    const etag = await etagOf(TAG)
    for (const last of [encodeURIComponent(etag), etag.slice(1, -1)])
      await waiting(`${TAG}?timeout_sec=600&last_etag=${last}&wait_for_change=true`)
  })

  test.each(['0', '601', '1000', '-1', '1.5', '', 'x'])('refuses timeout_sec=%s with 400', async (seconds) => {
    const { status } = await guest.ask(`${TAG}?wait_for_change=true&timeout_sec=${seconds}`)
    expect(status).toBe(400)
  })

  test.each(['wait_for_change=false', 'wait_for_change=', 'timeout_sec=0', 'alt=json', 'wait=true', 'recursive=1'])(
    'ignores %s',
    async (query) => expect(await guest.ask(`${TAG}?${query}`)).toMatchObject({ status: 200, text: 'old' }),
  )

  test('a listing is a value too', async () => {
    const settled = await waiting('/latest/meta-data/tags/instance/?wait_for_change=true')
    guest.put(tagged('new', { revision: 2 }))
    expect(await settled()).toBeUndefined()
    guest.put(tagged(undefined, { revision: 3 }))
    expect(await settled()).toMatchObject({ status: 200, text: 'kept' })
  })

  test('a value that is removed answers 404, although a new request has a minute of grace', async () => {
    const settled = await waiting(`${TAG}?wait_for_change=true`)
    guest.put(tagged(undefined, { revision: 2 }))
    expect(await settled()).toMatchObject({ status: 404 })
    expect(await guest.ask(TAG)).toMatchObject({ status: 200, text: 'old' })
  })

  test('the instance leaves the view: 503', async () => {
    const settled = await waiting(`${TAG}?wait_for_change=true`)
    guest.view.remove('srv-abcde', 1)
    expect(await settled()).toMatchObject({ status: 503, headers: { 'retry-after': '1' } })
  })

  test.each([
    ['another instance gets the address', true],
    ['another instance claims the address', false],
  ])('%s: 503, and never its value', async (_what, isGone) => {
    const settled = await waiting(`${TAG}?wait_for_change=true`)
    if (isGone)
      guest.put(
        tagged('old', {
          revision: 2,
          interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:0f', ipv4Addresses: ['10.0.7.7'] }],
        }),
      )
    guest.put(tagged('secret of the other', OTHER))
    const response = await settled()
    expect(response).toMatchObject({ status: 503 })
    expect(response?.text).not.toContain('secret')
  })

  test('the owner of the address is looked up again, also at the end of a wait', async () => {
    const settled = await waiting(`${TAG}?wait_for_change=true`)
    guest.held.wake = () => undefined
    guest.view.remove('srv-abcde', 1)
    guest.put(tagged('secret of the other', OTHER))
    guest.held.stop()
    expect(await settled()).toMatchObject({ status: 503 })
  })

  test.each([
    ['httpTokens: required', { httpTokens: 'required' }, 401],
    ['httpEndpoint: disabled', { httpEndpoint: 'disabled' }, 403],
  ])('%s ends the right of a held request', async (_what, options, status) => {
    const settled = await waiting(`${TAG}?wait_for_change=true`)
    guest.put(tagged('new', { revision: 2, options }))
    expect(await settled()).toMatchObject({ status })
  })

  test('the ninth request of an instance gets 503; another instance is held', async () => {
    const nic = { id: 'int-o', macAddress: '02:24:19:00:00:0e', ipv4Addresses: ['10.0.0.3'] }
    guest.put(tagged('x', { ...OTHER, interfaces: [nic] }))
    for (let i = 0; i < 8; i++) await waiting(`${TAG}?wait_for_change=true`)
    expect(await guest.ask(`${TAG}?wait_for_change=true`)).toMatchObject({
      status: 503,
      headers: { 'retry-after': '1' },
    })
    expect(await guest.ask(TAG)).toMatchObject({ status: 200 })
    void guest.ask({ url: `${TAG}?wait_for_change=true`, from: '10.0.0.3' })
    for (let i = 0; i < 10 && guest.held.size < 9; i++) await turn()
    expect(guest.held.size).toBe(9)
  })
})

describe('H2: recursive', () => {
  const json = async (url: string) => {
    const response = await guest.ask(url)
    expect([response.status, response.headers['content-type']]).toEqual([200, 'application/json'])
    return JSON.parse(response.body.toString()) as Record<string, unknown>
  }

  test('has each path of the directory as keys, and each leaf as a string', async () => {
    guest.put(aFullInstance({ revision: 2 }), Buffer.from('secret user-data'))
    const tree = await json('/latest/?recursive=true&alt=json')
    expect(tree).not.toHaveProperty('user-data')
    expect(JSON.stringify(tree)).not.toContain('secret')
    const visit = async (node: Record<string, unknown>, path: string): Promise<number> => {
      let leaves = 0
      for (const [name, value] of Object.entries(node)) {
        if (typeof value === 'string') {
          const leaf = await guest.ask(encodeURI(`${path}${name}`))
          expect([path, name, value]).toEqual([path, name, leaf.body.toString()])
          leaves += 1
        } else leaves += await visit(value as Record<string, unknown>, `${path}${name}/`)
      }
      return leaves
    }
    expect(await visit(tree, '/latest/')).toBeGreaterThan(50)
    const listed = Object.keys(tree['meta-data'] as object)
    expect((await guest.ask('/latest/meta-data/')).text.split('\n').map((name) => name.replace('/', ''))).toEqual(
      listed,
    )
  })

  test('has only what the version has, and is the leaf itself for a leaf', async () => {
    expect(await json('/1.0/meta-data?recursive=true')).not.toHaveProperty('tags')
    expect(await guest.ask(`${TAG}?recursive=true`)).toMatchObject({ status: 200, text: 'old' })
    expect((await guest.ask('/latest/none/?recursive=true')).status).toBe(404)
  })

  test('keys of public-keys/ are the names of its directories', async () => {
    guest.put(aFullInstance({ revision: 2 }))
    expect(Object.keys(await json('/latest/meta-data/public-keys/?recursive=true'))).toEqual(['0', '1'])
  })

  test('a request waits for any change below a directory', async () => {
    const settled = await waiting('/latest/meta-data/tags/?recursive=true&wait_for_change=true')
    guest.put(tagged('new', { revision: 2 }))
    expect((await settled())?.text).toBe('{"instance":{"kept":"x","state":"new"}}')
  })

  test('F1: costs a share of one request for each 16 paths', async () => {
    guest = aGuestServer({ share: { burst: 600, perSecond: 1, connections: 64 } })
    guest.put(aFullInstance())
    let served = 0
    while ((await guest.ask('/latest/?recursive=true')).status === 200) served += 1
    expect(served).toBeGreaterThan(50)
    expect(served).toBeLessThan(150)
  })
})

test('D4: a request is held no longer than its session token is valid, and then gets 401', async () => {
  const mint = await guest.ask({ method: 'PUT', url: '/latest/api/token', headers: { [TTL]: '1' } })
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  try {
    const settled = await waiting(`${TAG}?wait_for_change=true`, { 'x-aws-ec2-metadata-token': mint.text })
    guest.clock.ms = 2_000
    await vi.advanceTimersByTimeAsync(2_000)
    expect((await settled())?.status).toBe(401)
  } finally {
    vi.useRealTimers()
  }
})
