import type { IncomingHttpHeaders } from 'node:http'
import { Socket } from 'node:net'
import { describe, expect, test } from 'vitest'
import { decide, isLast, type Asked, type Rules } from '../../../src/guest/authorize.ts'
import type { Guest } from '../../../src/guest/identify.ts'
import { RequestMeter } from '../../../src/guest/meter.ts'
import { parseTarget } from '../../../src/metadata/target.ts'

const GUEST: Guest = {
  instance: { id: 'srv-a', options: { httpEndpoint: 'enabled', httpProtocolIpv6: 'disabled', httpTokens: 'optional' } }, paths: 1,
  resolve: () => ({ body: 'x', headers: [] }),
}

function decided(change: Partial<Asked> = {}, rules: Partial<Rules> = {}) {
  const meter = new RequestMeter()
  const asked: Asked = { network: 'default', address: '10.0.0.2', found: GUEST, method: 'GET', target: parseTarget('/latest/meta-data/mac'), headers: {}, httpVersion: '1.1', connection: new Socket(), ...change }
  const tokens = { mint: () => 'minted', verify: (token: string) => token === 'good' ? 7 : null }
  return { ...decide(asked, { tokens, forwarded: 'refuse', limitHops: () => true, ...rules }, meter), sessions: meter.sessions, forwards: meter.forwards }
}

describe('where the end of a request is a matter of opinion it is refused', () => {
  test.each([
    ['chunked', '1.1', 'served'], ['gzip, chunked', '1.1', 'served'], ['gzip,\tChunked', '1.1', 'served'], ['gzip,chunked', '1.1', 'served'],
    ['chunked', '1.0', 'malformed-request'], ['chunked, gzip', '1.1', 'malformed-request'], ['chunked ', '1.1', 'malformed-request'], ['xchunked', '1.1', 'malformed-request'],
    ['gzip', '1.1', 'malformed-request'], ['', '1.1', 'malformed-request'], ['gzip chunked', '1.1', 'malformed-request'],
  ])('Transfer-Encoding "%s" of HTTP/%s: %s', (encoding, httpVersion, outcome) => {
    expect(decided({ headers: { 'transfer-encoding': encoding }, httpVersion }).outcome).toBe(outcome)
  })
})

test.each<[string, IncomingHttpHeaders, Parameters<typeof isLast>[1], boolean]>([
  ['nothing', {}, 'served', false], ['a length of 0', { 'content-length': '0' }, 'not-found', false], ['a length', { 'content-length': '5' }, 'served', true],
  ['two zeros, which are read as one length elsewhere', { 'content-length': '00' }, 'served', true],
  ['an encoding', { 'transfer-encoding': 'chunked' }, 'method-not-allowed', true], ['another protocol', { upgrade: 'h2c' }, 'served', true], ['no certain end', {}, 'malformed-request', true],
])('a request with %s is the last of its connection: %o, answered %s: %s', (_what, headers, outcome, last) => { expect(isLast(headers, outcome)).toBe(last) })

describe('D5: a request that says that it was forwarded', () => {
  const [forwarded, withToken] = [{ 'x-forwarded-for': '10.0.0.9' }, { forwarded: 'for=x', 'x-aws-ec2-metadata-token': 'good' }]
  const put = { method: 'PUT', target: parseTarget('/latest/api/token'), headers: { ...forwarded, 'x-aws-ec2-metadata-token-ttl-seconds': '60' } }
  test.each<[Rules['forwarded'], Partial<Asked>, string]>([
    ['refuse', { headers: forwarded }, 'forwarded'], ['refuse', { headers: withToken }, 'forwarded'], ['refuse', put, 'forwarded'], ['refuse', { headers: forwarded, target: 'malformed' }, 'forwarded'],
    ['refuse-tokens', { headers: forwarded }, 'served'], ['refuse-tokens', { headers: withToken }, 'forwarded'], ['refuse-tokens', put, 'forwarded'],
    ['refuse-tokens', { headers: forwarded, target: 'malformed' }, 'malformed-target'], ['refuse-tokens', { headers: withToken, target: 'malformed' }, 'forwarded'],
    ['count', { headers: forwarded }, 'served'], ['count', { headers: withToken }, 'served'], ['count', put, 'served'],
  ])('%s: %o is %s, and counted', (rule, asked, outcome) => {
    expect(decided(asked, { forwarded: rule })).toMatchObject({ outcome, forwards: 1 })
  })
  test('and one that does not is not counted', () => { expect(decided().forwards).toBe(0) })
})

describe('D6: on a connection whose hops cannot be limited', () => {
  const limitHops = () => false
  const target = parseTarget('/latest/api/token')
  test('no token is minted', () => {
    let minted = 0
    const tokens = { mint: () => String(minted += 1), verify: () => null }
    expect(decided({ method: 'PUT', target, headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' } }, { limitHops, tokens })).toMatchObject({ outcome: 'hop-limit-failed', content: null })
    expect(minted).toBe(0)
  })
  test('everything else is answered', () => {
    expect([decided({}, { limitHops }), decided({ method: 'OPTIONS', target }, { limitHops })].map(({ outcome }) => outcome)).toEqual(['served', 'served'])
  })
})

test('D4: a token that is good is told what it still has, also where nothing is found', () => {
  const headers = { 'x-aws-ec2-metadata-token': 'good' }
  expect(decided({ headers })).toMatchObject({ outcome: 'served', ttlSeconds: 7, sessions: { token: 1, none: 0, refused: 0 } })
  expect(decided({ headers, found: { ...GUEST, resolve: () => undefined } })).toMatchObject({ outcome: 'not-found', ttlSeconds: 7 })
  expect(decided({ headers: { 'x-aws-ec2-metadata-token': 'bad' } })).toMatchObject({ outcome: 'token-invalid', ttlSeconds: null, sessions: { token: 0, none: 0, refused: 1 } })
})
