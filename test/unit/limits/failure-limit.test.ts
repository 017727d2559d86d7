import { expect, test } from 'vitest'
import { FailureLimit } from '../../../src/limits/failure-limit.ts'

/**
 * A limit with a clock of its own, for users. `fails` counts the failures until a request is refused; `most` bounds it.
 * `floods`: with a made-up name.
 */
function aLimit() {
  const clock = { nowMs: 1_000_000 }
  const limit = new FailureLimit(() => clock.nowMs)
  const waitSeconds = (name: string, address: string) => limit.waitSeconds({ kind: 'user', name }, address)
  const succeeded = (name: string, address: string) => limit.recordSuccess({ kind: 'user', name }, address)
  const fails = (name: string, address: string, most = 1000, isReal = true) => {
    for (let count = 0; count < most; count++) {
      if (waitSeconds(name, address) !== undefined) return count
      limit.countFailure({ kind: 'user', name }, address, isReal)
    }
    return most
  }
  return {
    limit,
    clock,
    fails,
    waitSeconds,
    succeeded,
    floods: (name: string, address: string) => fails(name, address, 1, false),
  }
}

test('a pair of subject and address has 10 failures at once, and one a minute after that', () => {
  const { clock, fails, waitSeconds } = aLimit()
  expect(fails('ada', '192.0.2.1')).toBe(10)
  expect(waitSeconds('ada', '192.0.2.1')).toBe(60)
  clock.nowMs += 59_999
  expect(fails('ada', '192.0.2.1')).toBe(0)
  clock.nowMs += 1
  expect(fails('ada', '192.0.2.1')).toBe(1)
})

test('a pair that is refused locks out neither the subject elsewhere nor others at the address', () => {
  const { fails, waitSeconds } = aLimit()
  fails('ada', '192.0.2.1')
  expect(waitSeconds('ada', '192.0.2.2')).toBeUndefined()
  expect(waitSeconds('grace', '192.0.2.1')).toBeUndefined()
})

test('an address has 100 failures of many subjects at once, and one a second after that', () => {
  const { clock, fails, waitSeconds } = aLimit()
  let count = 0
  for (let i = 0; i < 50; i++) count += fails(`user ${i}`, '192.0.2.1')
  expect(count).toBe(100)
  expect(waitSeconds('new', '192.0.2.1')).toBe(1)
  expect(waitSeconds('new', '192.0.2.2')).toBeUndefined()
  clock.nowMs += 3000
  expect([1, 2, 3, 4].map((i) => fails(`later ${i}`, '192.0.2.1', 1))).toEqual([1, 1, 1, 0])
})

test('a subject has 100 failures from many addresses, except where it has succeeded', () => {
  const { fails, waitSeconds, succeeded } = aLimit()
  succeeded('ada', '198.51.100.1')
  let count = 0
  for (let i = 0; i < 50; i++) count += fails('ada', `192.0.2.${i}`)
  expect(count).toBe(100)
  expect(waitSeconds('ada', '203.0.113.1')).toBe(60)
  expect(waitSeconds('ada', '198.51.100.1')).toBeUndefined()
  expect(fails('ada', '198.51.100.1')).toBe(10)
})

test('an address where a subject has succeeded has no limit for it but that of the pair', () => {
  const { fails, waitSeconds, succeeded } = aLimit()
  succeeded('ada', '192.0.2.1')
  for (let i = 0; i < 50; i++) fails(`user ${i}`, '192.0.2.1')
  expect(waitSeconds('grace', '192.0.2.1')).toBe(1)
  expect(waitSeconds('ada', '192.0.2.1')).toBeUndefined()
})

test('names that an address sends beyond its limit push out no counted failure', () => {
  const { fails, waitSeconds } = aLimit()
  fails('ada', '192.0.2.1')
  for (let i = 0; i < 10_001; i++) fails(`name ${i}`, '192.0.2.2', 1)
  expect(waitSeconds('name', '192.0.2.2')).toBe(1)
  expect(waitSeconds('ada', '192.0.2.1')).toBe(60)
})

test('failures of requests that an address sent in parallel push out no counted failure', () => {
  const { limit, fails, waitSeconds } = aLimit()
  fails('ada', '192.0.2.1')
  for (let i = 0; i < 10_001; i++) limit.countFailure({ kind: 'user', name: `name ${i}` }, '192.0.2.2', true)
  expect(waitSeconds('ada', '192.0.2.1')).toBe(60)
})

test('the addresses of an IPv6 /64 are one, and IPv4 addresses are apart in IPv6 form too', () => {
  const { fails, waitSeconds } = aLimit()
  expect([1, 2, 3].map((n) => fails('ada', `2001:db8::${n}`, 4))).toEqual([4, 4, 2])
  expect(waitSeconds('ada', '2001:db8:0:1::1')).toBeUndefined()
  fails('grace', '::ffff:192.0.2.1')
  expect(waitSeconds('grace', '192.0.2.1')).toBe(60)
  expect(waitSeconds('grace', '::ffff:192.0.2.2')).toBeUndefined()
})

/** The address number `i` of a /48, each in a /64 of its own. */
const ofA48 = (i: number) => `2001:db8:48:${i.toString(16)}::1`

test('made-up names from a /48 push out neither the failures of a user nor its known addresses', () => {
  const { fails, floods, waitSeconds, succeeded } = aLimit()
  succeeded('ada', '198.51.100.1')
  expect([...Array(10).keys(), 10].map((i) => fails('ada', ofA48(i)))).toEqual([...Array<number>(10).fill(10), 0])
  expect(fails('ada', '198.51.100.1')).toBe(10)
  for (let i = 0; i < 10_001; i++) floods(`name ${i}`, ofA48(i))
  expect(['192.0.2.9', '198.51.100.1'].map((address) => waitSeconds('ada', address))).toEqual([60, 60])
  expect(fails('ada', '192.0.2.9')).toBe(0)
})

test('failures of any number of real clients push out no failure of a user', () => {
  const { limit, fails, waitSeconds } = aLimit()
  fails('ada', '192.0.2.1')
  for (let i = 0; i < 10_001; i++) limit.countFailure({ kind: 'client', name: `cli-${i}` }, ofA48(i), true)
  expect(waitSeconds('ada', '192.0.2.1')).toBe(60)
})

test('successes from thousands of addresses push out no known address of another; 64 of their own stay', () => {
  const { limit, fails, waitSeconds, succeeded } = aLimit()
  succeeded('ada', '198.51.100.1')
  for (let i = 0; i < 10_001; i++) succeeded('mallory', ofA48(i))
  for (let i = 0; i < 10_001; i++) limit.recordSuccess({ kind: 'client', name: `cli-${i}` }, ofA48(i))
  for (let i = 0; i < 20; i++) for (const name of ['ada', 'mallory']) fails(name, `192.0.2.${i}`)
  expect(waitSeconds('ada', '198.51.100.1')).toBeUndefined()
  expect([63, 64].map((before) => waitSeconds('mallory', ofA48(10_001 - 1 - before)))).toEqual([undefined, 60])
})

test('an address that succeeds again is known as long as one that succeeds then for the first time', () => {
  const { fails, waitSeconds, succeeded } = aLimit()
  for (const from of [0, 40]) {
    succeeded('ada', '198.51.100.1')
    for (let i = from; i < from + 40; i++) succeeded('ada', ofA48(i))
  }
  for (let i = 0; i < 20; i++) fails('ada', `192.0.2.${i}`)
  expect(waitSeconds('ada', '198.51.100.1')).toBeUndefined()
})

test('a success takes back no failure at its address', () => {
  const { fails, succeeded } = aLimit()
  fails('ada', '192.0.2.1', 4)
  succeeded('ada', '192.0.2.1')
  expect(fails('ada', '192.0.2.1', 3)).toBe(3)
  succeeded('ada', '192.0.2.1')
  expect(fails('ada', '192.0.2.1')).toBe(3)
})

test('made-up names have the limits of real ones, so the limits do not show which are real', () => {
  for (const isReal of [true, false]) {
    const { fails } = aLimit()
    const counts = [...Array(12).keys()].map((i) => fails('ada', ofA48(i), 1000, isReal))
    expect(counts).toEqual([...Array<number>(10).fill(10), 0, 0])
  }
})

test('a name of any length is one subject, and an entry takes as much memory as one of a short name', () => {
  const { fails, waitSeconds } = aLimit()
  fails('a'.repeat(10_000), '192.0.2.1')
  expect(waitSeconds('a'.repeat(10_000), '192.0.2.1')).toBe(60)
  expect(waitSeconds(`${'a'.repeat(10_000)}b`, '192.0.2.1')).toBeUndefined()
  for (const address of ['', 'unix:', 'x:y']) expect(fails('ada', address, 20)).toBe(10)
})

test('what is left of a pair is the same for a real name, an invented one and a known address', () => {
  const { limit, fails, succeeded, waitSeconds } = aLimit()
  const [own, known] = ['192.0.2.1', '192.0.2.2']
  succeeded('ada', known)
  const left = (name: string, address: string) =>
    limit.quotaOf({ kind: 'user', name }, address, waitSeconds(name, address)).remaining
  const counts = (name: string, address: string, isReal: boolean) =>
    Array.from({ length: 11 }, () => {
      fails(name, address, 1, isReal)
      return left(name, address)
    })
  const expected = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
  expect([counts('ada', own, true), counts('eve', own, false), counts('ada', known, true)]).toEqual([
    expected,
    expected,
    expected,
  ])
})

test('beyond the limit of an address or a subject nothing is left, for as long as Retry-After says', () => {
  const { limit, fails, waitSeconds } = aLimit()
  for (let i = 0; i < 10; i++) fails(`user${i}`, '192.0.2.1')
  const seconds = waitSeconds('ada', '192.0.2.1')
  expect(limit.quotaOf({ kind: 'user', name: 'ada' }, '192.0.2.1', seconds)).toEqual({
    name: 'failures',
    quota: 10,
    windowSeconds: 600,
    remaining: 0,
    retrySeconds: 1,
  })
})
