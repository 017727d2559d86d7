import { expect, test } from 'vitest'
import { MAX_TTL_SECONDS, parseTtl, Tokens, tokenTime } from '../../../../src/imdsd/guest/token.ts'

const [FIRST, SECOND] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)]

test('D3: a token is valid on every daemon that shares the key, and on no other', () => {
  const token = new Tokens([FIRST], () => 1_000).mint('default', 'srv-abcde', 60)
  expect(new Tokens([FIRST], () => 1_001).verify(token, 'default', 'srv-abcde')).toBe(59)
  expect(new Tokens([SECOND], () => 1_001).verify(token, 'default', 'srv-abcde')).toBeUndefined()
})

test('D3: keys rotate with an overlap: the first mints, all verify', () => {
  const old = new Tokens([FIRST], () => 0).mint('default', 'srv-abcde', 60)
  const rotated = new Tokens([SECOND, FIRST], () => 0)
  expect(rotated.verify(old, 'default', 'srv-abcde')).toBe(60)
  expect(new Tokens([SECOND], () => 0).verify(rotated.mint('default', 'srv-abcde', 60), 'default', 'srv-abcde')).toBe(
    60,
  )
  expect(new Tokens([SECOND], () => 0).verify(old, 'default', 'srv-abcde')).toBeUndefined()
})

test('D3: a token is bound to instance and network, even after it is cached as valid', () => {
  const tokens = new Tokens([FIRST], () => 0)
  const token = tokens.mint('default', 'srv-abcde', 60)
  for (let i = 0; i < 2; i++) {
    expect(tokens.verify(token, 'default', 'srv-abcde')).toBe(60)
    expect(tokens.verify(token, 'other', 'srv-abcde')).toBeUndefined()
    expect(tokens.verify(token, 'default', 'srv-abcdf')).toBeUndefined()
  }
})

test('D3: changing any bit of a token makes it invalid', () => {
  const tokens = new Tokens([FIRST], () => 0)
  const bytes = Buffer.from(tokens.mint('default', 'srv-abcde', 60), 'base64url')
  for (let bit = 0; bit < bytes.length * 8; bit++) {
    const changed = Buffer.from(bytes)
    changed[bit >> 3]! ^= 1 << (bit & 7)
    expect(tokens.verify(`${changed.toString('base64url')}==`, 'default', 'srv-abcde')).toBeUndefined()
  }
})

/** The clocks of a hypervisor, and its daemon, which can be restarted. */
function aHypervisor() {
  const hypervisor = {
    wallMs: 1_800_000_000_000,
    steadyMs: 5_000,
    restart: () =>
      new Tokens(
        [FIRST],
        tokenTime(
          () => hypervisor.wallMs,
          () => hypervisor.steadyMs,
        ),
      ),
  }
  const pass = (seconds: number) => {
    hypervisor.wallMs += seconds * 1_000
    hypervisor.steadyMs += seconds * 1_000
  }
  return { hypervisor, pass, left: (tokens: Tokens, token: string) => tokens.verify(token, 'default', 'srv-abcde') }
}

test('D4: a wall clock that jumps forward or back changes no token of a running daemon', () => {
  for (const jumpMs of [-86_400_000, -3_600_000, 3_600_000, 86_400_000]) {
    const { hypervisor, pass, left } = aHypervisor()
    const tokens = hypervisor.restart()
    const [short, long] = [60, MAX_TTL_SECONDS].map((ttl) => tokens.mint('default', 'srv-abcde', ttl)) as [
      string,
      string,
    ]
    pass(59)
    hypervisor.wallMs += jumpMs
    expect([left(tokens, short), left(tokens, long), left(tokens, tokens.mint('default', 'srv-abcde', 60))]).toEqual([
      1,
      MAX_TTL_SECONDS - 59,
      60,
    ])
    pass(1)
    expect(left(tokens, short), 'expired').toBeUndefined()
    hypervisor.wallMs -= jumpMs
    expect([left(tokens, short), left(tokens, long)]).toEqual([undefined, MAX_TTL_SECONDS - 60])
  }
})

test('D3: a token keeps its remaining lifetime after a restart and a reboot', () => {
  const { hypervisor, pass, left } = aHypervisor()
  const token = hypervisor.restart().mint('default', 'srv-abcde', 60)
  pass(20)
  expect(left(hypervisor.restart(), token)).toBe(40)
  hypervisor.steadyMs = 0
  expect(left(hypervisor.restart(), token)).toBe(40)
  pass(40)
  expect(left(hypervisor.restart(), token)).toBeUndefined()
})

test('D4: a daemon started after a clock jump uses the new time, and no token exceeds the maximum', () => {
  const { hypervisor, pass, left } = aHypervisor()
  const tokens = hypervisor.restart()
  const [short, long] = [60, MAX_TTL_SECONDS].map((ttl) => tokens.mint('default', 'srv-abcde', ttl)) as [string, string]
  hypervisor.wallMs += 60_000
  expect([left(hypervisor.restart(), short), left(hypervisor.restart(), long)], 'forward').toEqual([
    undefined,
    MAX_TTL_SECONDS - 60,
  ])
  hypervisor.wallMs -= 120_000
  expect([left(hypervisor.restart(), short), left(hypervisor.restart(), long)], 'back').toEqual([120, undefined])
  pass(60)
  expect(left(hypervisor.restart(), long)).toBe(MAX_TTL_SECONDS)
})

test('D3: 4,096 valid tokens are cached, and those that are dropped stay valid', () => {
  const tokens = new Tokens([FIRST], () => 0)
  const minted = Array.from({ length: 5_000 }, (_, i) => tokens.mint('default', 'srv-abcde', 1 + i))
  for (let round = 0; round < 2; round++) {
    expect(minted.map((token) => tokens.verify(token, 'default', 'srv-abcde'))).toEqual(minted.map((_, i) => 1 + i))
    expect(tokens.remembered).toBe(4_096)
  }
})

test('an invalid token is not cached', () => {
  const tokens = new Tokens([FIRST], () => 0)
  for (let i = 0; i < 100; i++)
    tokens.verify(new Tokens([SECOND], () => 0).mint('default', 'srv-abcde', 1 + i), 'default', 'srv-abcde')
  expect(tokens.remembered).toBe(0)
})

test('D1: only a whole number of 1 to 21600 seconds is a lifetime', () => {
  expect(['1', '21600', '007'].map(parseTtl)).toEqual([1, 21_600, 7])
  expect(
    [undefined, '', ' ', '0', '21601', '60s', '6e1', '1e999', '６０'].map(parseTtl).every((ttl) => ttl === undefined),
  ).toBe(true)
})

test('D1: tokens are minted and verified across 2106, when the time of expiry begins at 0 again', () => {
  const end = 2 ** 32
  let now = end - 10
  const tokens = new Tokens([FIRST], () => now)
  const before = tokens.mint('default', 'srv-abcde', 60)
  const left = () => tokens.verify(before, 'default', 'srv-abcde')
  expect(left()).toBe(60)
  now = end + 10
  expect(left()).toBe(40)
  expect(tokens.verify(tokens.mint('default', 'srv-abcde', 60), 'default', 'srv-abcde')).toBe(60)
  now = end + 50
  expect(left()).toBeUndefined()
})
