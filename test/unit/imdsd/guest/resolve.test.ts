import type { IncomingHttpHeaders } from 'node:http'
import { Socket } from 'node:net'
import { describe, expect, test } from 'vitest'
import type { Authorized, Rules } from '../../../../src/imdsd/guest/authorize.ts'
import type { Guest } from '../../../../src/imdsd/guest/identify.ts'
import { resolve } from '../../../../src/imdsd/guest/resolve.ts'
import { parseTarget } from '../../../../src/metadata/target.ts'
import { VERSIONS } from '../../../../src/metadata/versions.ts'
import { GUEST } from '../../../support/fixtures/guest.ts'

const CONTENT = { body: 'x', headers: [] }
const TTL = 'x-aws-ec2-metadata-token-ttl-seconds'
const TOKEN = '/latest/api/token'

interface Request {
  readonly method: string
  readonly target: string
  readonly headers: IncomingHttpHeaders
  readonly ttlSeconds: number
  readonly limitsHops: boolean
  readonly content: typeof CONTENT | undefined
  readonly prepareIdentity: Guest['prepareIdentity']
  readonly issuerOf: Rules['issuerOf']
}

const issuerFor: Rules['issuerOf'] = (instance) => ({
  audiences: undefined,
  mint: (audience) => Promise.resolve(`${instance.id} for ${audience}`),
})

/** Resolves an authorized request; gives its result, the paths that were asked for, and the tokens that were minted. */
function resolved({
  method = 'GET',
  target = '/latest/meta-data/mac',
  headers = {},
  ttlSeconds,
  limitsHops = true,
  prepareIdentity = () => undefined,
  ...rest
}: Partial<Request> = {}) {
  const content = 'content' in rest ? rest.content : CONTENT
  const paths: [number, string][] = []
  const minted: unknown[] = []
  const guest: Guest = {
    ...GUEST,
    prepareIdentity,
    resolve: (version, path) => {
      paths.push([version, path])
      return content
    },
  }
  const parsed = parseTarget(target)
  if (!parsed.ok) throw new Error(target)
  const authorized: Authorized = { kind: 'authorized', guest, target: parsed.value, ttlSeconds }
  const tokens = { mint: (...what: unknown[]) => `token ${String(minted.push(what))}`, verify: () => undefined }
  const result = resolve(
    {
      network: 'red',
      rawTarget: target,
      request: { method, headers, rawHeaders: [], httpVersion: '1.1', socket: new Socket() },
    },
    authorized,
    { tokens, limitHops: () => limitsHops, issuerOf: rest.issuerOf ?? issuerFor },
  )
  return { result, paths, minted }
}

test('a path is resolved in the tree of the guest, at the version of the target', () => {
  const { result, paths } = resolved({ target: '/2021-01-03//meta-data/mac/' })
  expect(paths).toEqual([[VERSIONS.indexOf('2021-01-03'), 'meta-data/mac']])
  expect(result).toMatchObject({ kind: 'served', route: '/{version}/meta-data', content: CONTENT })
})

test('the list of versions is the same for every guest, and needs no tree', () => {
  const { result, paths } = resolved({ target: '//' })
  expect([result.kind === 'served' && result.content.body, paths]).toEqual([VERSIONS.join('\n'), []])
})

test('D4: the remaining seconds of the token are given with content and with every refusal of a path', () => {
  const requests = [
    {},
    { content: undefined },
    { target: '/nothing' },
    { target: '/2021-01-03/api/token' },
    { method: 'POST' },
  ]
  expect(requests.map((request) => resolved({ ...request, ttlSeconds: 7 }).result.ttlSeconds)).toEqual([7, 7, 7, 7, 7])
})

describe('a request is refused', () => {
  test.each<[string, Partial<Request>, string]>([
    ['for a path that the tree lacks', { content: undefined }, 'not-found'],
    ['for a path outside of the tree', { target: '/nothing' }, 'not-found'],
    ['for a path outside of the tree, by any method', { target: '/nothing', method: 'PUT' }, 'not-found'],
    ['for the token path of a dated version', { target: '/2021-01-03/api/token' }, 'not-found'],
    ['that would change the tree', { method: 'PUT' }, 'method-not-allowed'],
    ['with a method in lower case', { method: 'get' }, 'method-not-allowed'],
    ['for a token by GET', { target: TOKEN }, 'token-method'],
    ['for a token by POST', { target: TOKEN, method: 'POST', headers: { [TTL]: '60' } }, 'token-method'],
    ['D1: for a token without a lifetime', { target: TOKEN, method: 'PUT' }, 'bad-token-ttl'],
    [
      'D1: for a token whose lifetime is out of range',
      { target: TOKEN, method: 'PUT', headers: { [TTL]: '21601' } },
      'bad-token-ttl',
    ],
    [
      'D1: for a token with two lifetimes',
      { target: TOKEN, method: 'PUT', headers: { [TTL]: ['60', '60'] } },
      'bad-token-ttl',
    ],
    [
      'D6: for a token on a connection whose hops cannot be limited',
      { target: TOKEN, method: 'PUT', headers: { [TTL]: '60' }, limitsHops: false },
      'hop-limit-failed',
    ],
    [
      'D6: for any lifetime on such a connection',
      { target: TOKEN, method: 'PUT', limitsHops: false },
      'hop-limit-failed',
    ],
  ])('%s', (_what, request, refusal) => {
    const { result, minted } = resolved(request)
    expect([result.kind === 'refused' && result.refusal, minted]).toEqual([refusal, []])
  })
})

test('HEAD gets what GET gets', () => {
  expect(resolved({ method: 'HEAD' }).result).toEqual(resolved().result)
})

test('D3: a token is minted for the instance on the network of the listener, with its lifetime', () => {
  const { result, minted } = resolved({ target: TOKEN, method: 'PUT', headers: { [TTL]: '60' } })
  expect(minted).toEqual([['red', 'srv-a', 60]])
  expect(result).toMatchObject({
    kind: 'served',
    content: { body: 'token 1', headers: ['Content-Type', 'text/plain', 'Content-Length', '7'] },
    ttlSeconds: 60,
  })
})

test('D2: OPTIONS on the token path names the allowed methods', () => {
  const { result, minted } = resolved({ target: TOKEN, method: 'OPTIONS' })
  expect(result).toMatchObject({
    kind: 'served',
    content: { body: '', headers: ['Allow', 'OPTIONS, PUT', 'Content-Type', 'text/plain', 'Content-Length', '0'] },
  })
  expect(minted).toEqual([])
})

test('D6: on a connection whose hops cannot be limited, all requests but for a token are served', () => {
  const requests = [{}, { method: 'HEAD' }, { method: 'OPTIONS', target: TOKEN }]
  expect(requests.map((request) => resolved({ ...request, limitsHops: false }).result.kind)).toEqual([
    'served',
    'served',
    'served',
  ])
})

describe('the identity of a guest', () => {
  const IDENTITY_TOKEN = '/latest/dynamic/instance-identity/token'

  test.each([
    ['/latest/dynamic/instance-identity/signature', true],
    ['/2021-01-03/dynamic/?recursive=true', true],
    ['/latest/?recursive=true', true],
    ['/latest/dynamic/instance-identity/document', false],
    ['/2021-01-03/dynamic/', false],
    ['/latest/', false],
    ['/latest/meta-data/?recursive=true', false],
    ['/latest/meta-data/mac', false],
    ['/latest/user-data', false],
    ['/', false],
  ])('H3: %s is waited for: %s', async (target, isPending) => {
    const { promise, resolve: prepared } = Promise.withResolvers<undefined>()
    const { result, paths } = resolved({ target, prepareIdentity: () => promise })
    expect(result.kind).toBe(isPending ? 'pending' : 'served')
    if (result.kind !== 'pending') return
    expect([paths.length, result.cost]).toEqual([0, 0])
    prepared(undefined)
    expect([await result.content, paths.length]).toEqual([CONTENT, 1])
  })

  test('H4: a token is minted for the audience, costs more than a leaf, and no cache keeps it', async () => {
    const { result } = resolved({ target: `${IDENTITY_TOKEN}?audience=https%3A%2F%2Fvault`, ttlSeconds: 7 })
    expect(result).toMatchObject({ kind: 'pending', ttlSeconds: 7, cost: 20 })
    expect(result.kind === 'pending' && (await result.content)).toEqual({
      body: 'srv-a for https://vault',
      headers: ['Content-Type', 'text/plain', 'Content-Length', '23', 'Cache-Control', 'no-store'],
    })
  })

  test.each<[string, Partial<Request>, string]>([
    ['without an issuer', { ttlSeconds: 7, issuerOf: () => undefined }, 'not-found'],
    ['without a session token', {}, 'token-required'],
    ['by PUT', { method: 'PUT', ttlSeconds: 7 }, 'method-not-allowed'],
    ['without an audience', { target: IDENTITY_TOKEN, ttlSeconds: 7 }, 'bad-audience'],
  ])('H4: a token is refused %s', (_what, request, refusal) => {
    const { result } = resolved({ target: `${IDENTITY_TOKEN}?audience=a`, ...request })
    expect(result).toMatchObject({ kind: 'refused', refusal })
  })
})

test('A4: OPTIONS of the whole server is not allowed, as OPTIONS of a path', () => {
  const refusal = (method: string) => resolved({ target: '*', method }).result
  expect(refusal('OPTIONS')).toMatchObject({ refusal: 'method-not-allowed' })
  expect(refusal('GET')).toMatchObject({ refusal: 'not-found' })
})
