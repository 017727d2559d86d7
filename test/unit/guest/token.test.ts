import { expect, test } from 'vitest'
import { MAX_TTL_SECONDS, parseTtl, Tokens } from '../../../src/guest/token.ts'

const [FIRST, SECOND] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)]

test('D3: a token is valid on every daemon that shares the key, and on no other', () => {
  const token = new Tokens([FIRST], () => 1_000).mint('default', 'srv-abcde', 60)
  expect(new Tokens([FIRST], () => 1_001).verify(token, 'default', 'srv-abcde')).toBe(59)
  expect(new Tokens([SECOND], () => 1_001).verify(token, 'default', 'srv-abcde')).toBeNull()
})

test('D3: keys rotate with an overlap: the first mints, all verify', () => {
  const old = new Tokens([FIRST], () => 0).mint('default', 'srv-abcde', 60)
  const rotated = new Tokens([SECOND, FIRST], () => 0)
  expect(rotated.verify(old, 'default', 'srv-abcde')).toBe(60)
  expect(new Tokens([SECOND], () => 0).verify(rotated.mint('default', 'srv-abcde', 60), 'default', 'srv-abcde')).toBe(60)
  expect(new Tokens([SECOND], () => 0).verify(old, 'default', 'srv-abcde')).toBeNull()
})

test('D3: a token is bound to instance and network, also once it is known to be good', () => {
  const tokens = new Tokens([FIRST], () => 0)
  const token = tokens.mint('default', 'srv-abcde', 60)
  for (let i = 0; i < 2; i++) {
    expect(tokens.verify(token, 'default', 'srv-abcde')).toBe(60)
    expect(tokens.verify(token, 'other', 'srv-abcde')).toBeNull()
    expect(tokens.verify(token, 'default', 'srv-abcdf')).toBeNull()
  }
})

test('D3: every bit of a token counts', () => {
  const tokens = new Tokens([FIRST], () => 0)
  const bytes = Buffer.from(tokens.mint('default', 'srv-abcde', 60), 'base64url')
  for (let bit = 0; bit < bytes.length * 8; bit++) {
    const changed = Buffer.from(bytes)
    changed[bit >> 3]! ^= 1 << (bit & 7)
    expect(tokens.verify(`${changed.toString('base64url')}==`, 'default', 'srv-abcde')).toBeNull()
  }
})

test('D4: a clock that was set back makes no token live longer than the longest', () => {
  const clock = { now: 100_000 }
  const tokens = new Tokens([FIRST], () => clock.now)
  const token = tokens.mint('default', 'srv-abcde', MAX_TTL_SECONDS)
  clock.now -= 86_400
  expect(tokens.verify(token, 'default', 'srv-abcde')).toBeNull()
})

test('a guest that mints without end costs no memory', () => {
  const tokens = new Tokens([FIRST], () => 0)
  const before = process.memoryUsage().heapUsed
  for (let i = 0; i < 20_000; i++) tokens.verify(tokens.mint('default', 'srv-abcde', 1 + i % MAX_TTL_SECONDS), 'default', 'srv-abcde')
  expect(process.memoryUsage().heapUsed - before).toBeLessThan(50 * 1024 * 1024)
})

test('D1: only a whole number of 1 to 21600 seconds is a life', () => {
  expect(['1', '21600', '007'].map(parseTtl)).toEqual([1, 21_600, 7])
  expect([undefined, '', ' ', '0', '21601', '60s', '6e1', '1e999', '６０'].map(parseTtl).every((ttl) => ttl === null)).toBe(true)
})
