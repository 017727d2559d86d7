import type { IncomingHttpHeaders } from 'node:http'
import { Socket } from 'node:net'
import { describe, expect, test } from 'vitest'
import { authorize, type Rules } from '../../../../src/imdsd/guest/authorize.ts'
import type { Exchange } from '../../../../src/imdsd/guest/exchange.ts'
import type { FoundGuest } from '../../../../src/imdsd/guest/identify.ts'
import { RequestMeter } from '../../../../src/imdsd/guest/meter.ts'
import { resolve } from '../../../../src/imdsd/guest/resolve.ts'
import { parseTarget } from '../../../../src/metadata/target.ts'
import { GUEST } from '../../../support/fixtures/guest.ts'

interface Request {
  readonly found: FoundGuest
  readonly method: string
  readonly target: string
  readonly headers: IncomingHttpHeaders
  readonly httpVersion: string
}

/** Authorizes and resolves a request; gives its outcome, the seconds of its token, and what was counted. */
function resolved(
  {
    found = { kind: 'owned', owner: GUEST },
    method = 'GET',
    target = '/latest/meta-data/mac',
    headers = {},
    httpVersion = '1.1',
  }: Partial<Request> = {},
  change: Partial<Rules> = {},
) {
  const meter = new RequestMeter()
  const tokens = { mint: () => 'minted', verify: (token: string) => (token === 'good' ? 7 : undefined) }
  const rules: Rules = { tokens, forwarded: 'refuse', limitHops: () => true, issuerOf: () => undefined, ...change }
  const exchange: Pick<Exchange, 'network' | 'address' | 'found' | 'request' | 'rawTarget'> = {
    rawTarget: target,
    network: 'default',
    address: '10.0.0.2',
    found,
    request: { method, headers, rawHeaders: [], httpVersion, socket: new Socket() },
  }
  const authorization = authorize(exchange, parseTarget(target), rules, meter)
  const result = authorization.kind === 'authorized' ? resolve(exchange, authorization, rules) : authorization
  return {
    outcome: result.kind === 'refused' ? result.refusal : result.kind,
    ttlSeconds: result.ttlSeconds,
    sessions: meter.sessions,
    forwards: meter.forwards,
  }
}

describe('a request is refused if the end of its body is uncertain', () => {
  test.each([
    ['chunked', '1.1', 'served'],
    ['gzip, chunked', '1.1', 'served'],
    ['gzip,\tChunked', '1.1', 'served'],
    ['gzip,chunked', '1.1', 'served'],
    ['chunked', '1.0', 'malformed-request'],
    ['chunked, gzip', '1.1', 'malformed-request'],
    ['chunked ', '1.1', 'malformed-request'],
    ['xchunked', '1.1', 'malformed-request'],
    ['gzip', '1.1', 'malformed-request'],
    ['', '1.1', 'malformed-request'],
    ['gzip chunked', '1.1', 'malformed-request'],
  ])('Transfer-Encoding "%s" of HTTP/%s: %s', (encoding, httpVersion, outcome) => {
    expect(resolved({ headers: { 'transfer-encoding': encoding }, httpVersion }).outcome).toBe(outcome)
  })
})

test.each([
  ['1.0', 'served'],
  ['1.1', 'served'],
  ['0.9', 'malformed-request'],
  ['2.0', 'malformed-request'],
])('A5: a request of HTTP/%s is %s', (httpVersion, outcome) => {
  expect(resolved({ httpVersion }).outcome).toBe(outcome)
  expect(
    resolved({
      httpVersion,
      method: 'PUT',
      target: '/latest/api/token',
      headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
    }).outcome,
  ).toBe(outcome)
  expect(resolved({ httpVersion, headers: { 'x-forwarded-for': '10.0.0.9' } }).outcome).toBe(
    outcome === 'served' ? 'forwarded' : outcome,
  )
  expect(resolved({ httpVersion, found: { kind: 'unknown' } }).outcome).toBe('unknown-peer')
})

describe('D5: a forwarded request', () => {
  const [forwarded, withToken] = [
    { 'x-forwarded-for': '10.0.0.9' },
    { forwarded: 'for=x', 'x-aws-ec2-metadata-token': 'good' },
  ]
  const put = {
    method: 'PUT',
    target: '/latest/api/token',
    headers: { ...forwarded, 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
  }
  test.each<[Rules['forwarded'], Partial<Request>, string]>([
    ['refuse', { headers: forwarded }, 'forwarded'],
    ['refuse', { headers: withToken }, 'forwarded'],
    ['refuse', put, 'forwarded'],
    ['refuse', { headers: forwarded, target: '/%zz' }, 'forwarded'],
    ['refuse-tokens', { headers: forwarded }, 'served'],
    ['refuse-tokens', { headers: withToken }, 'forwarded'],
    ['refuse-tokens', put, 'forwarded'],
    ['refuse-tokens', { headers: forwarded, target: '/%zz' }, 'malformed-target'],
    ['refuse-tokens', { headers: withToken, target: '/%zz' }, 'forwarded'],
    ['count', { headers: forwarded }, 'served'],
    ['count', { headers: withToken }, 'served'],
    ['count', put, 'served'],
  ])('%s: %o is %s, and counted', (rule, request, outcome) => {
    expect(resolved(request, { forwarded: rule })).toMatchObject({ outcome, forwards: 1 })
  })
  test('is counted, and no other', () => {
    expect(resolved().forwards).toBe(0)
  })
})

test('D4: the response has the remaining seconds of a valid token, even on 404', () => {
  const headers = { 'x-aws-ec2-metadata-token': 'good' }
  expect(resolved({ headers })).toMatchObject({
    outcome: 'served',
    ttlSeconds: 7,
    sessions: { token: 1, none: 0, refused: 0 },
  })
  expect(resolved({ headers, found: { kind: 'owned', owner: { ...GUEST, resolve: () => undefined } } })).toMatchObject({
    outcome: 'not-found',
    ttlSeconds: 7,
  })
  expect(resolved({ headers: { 'x-aws-ec2-metadata-token': 'bad' } })).toMatchObject({
    outcome: 'token-invalid',
    ttlSeconds: undefined,
    sessions: { token: 0, none: 0, refused: 1 },
  })
})
