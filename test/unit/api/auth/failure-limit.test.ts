import { expect, test } from 'vitest'
import { FailureLimit } from '../../../../src/api/auth/failure-limit.ts'

/** A limit with a clock of its own. `fails` counts the failures until a request is refused; `most` bounds it. */
function aLimit() {
  const clock = { nowMs: 1_000_000 }
  const limit = new FailureLimit(() => clock.nowMs)
  const fails = (subject: string, address: string, most = 1000) => {
    for (let count = 0; count < most; count++) {
      if (limit.waitSeconds(subject, address) !== undefined) return count
      limit.failed(subject, address)
    }
    return most
  }
  return { limit, clock, fails }
}

test('a pair of subject and address has 10 failures at once, and one a minute after that', () => {
  const { limit, clock, fails } = aLimit()
  expect(fails('ada', '192.0.2.1')).toBe(10)
  expect(limit.waitSeconds('ada', '192.0.2.1')).toBe(60)
  clock.nowMs += 59_999
  expect(fails('ada', '192.0.2.1')).toBe(0)
  clock.nowMs += 1
  expect(fails('ada', '192.0.2.1')).toBe(1)
})

test('a pair that is refused locks out neither the subject elsewhere nor others at the address', () => {
  const { limit, fails } = aLimit()
  fails('ada', '192.0.2.1')
  expect(limit.waitSeconds('ada', '192.0.2.2')).toBeUndefined()
  expect(limit.waitSeconds('grace', '192.0.2.1')).toBeUndefined()
})

test('an address has 100 failures of many subjects at once, and one a second after that', () => {
  const { limit, clock, fails } = aLimit()
  let count = 0
  for (let i = 0; i < 50; i++) count += fails(`user ${String(i)}`, '192.0.2.1')
  expect(count).toBe(100)
  expect(limit.waitSeconds('new', '192.0.2.1')).toBe(1)
  expect(limit.waitSeconds('new', '192.0.2.2')).toBeUndefined()
  clock.nowMs += 3000
  expect([1, 2, 3, 4].map((i) => fails(`later ${String(i)}`, '192.0.2.1', 1))).toEqual([1, 1, 1, 0])
})

test('a subject has 100 failures from many addresses, except where it has succeeded', () => {
  const { limit, fails } = aLimit()
  limit.succeeded('ada', '198.51.100.1')
  let count = 0
  for (let i = 0; i < 50; i++) count += fails('ada', `192.0.2.${String(i)}`)
  expect(count).toBe(100)
  expect(limit.waitSeconds('ada', '203.0.113.1')).toBe(60)
  expect(limit.waitSeconds('ada', '198.51.100.1')).toBeUndefined()
  expect(fails('ada', '198.51.100.1')).toBe(10)
})

test('an address where a subject has succeeded has no limit for it but that of the pair', () => {
  const { limit, fails } = aLimit()
  limit.succeeded('ada', '192.0.2.1')
  for (let i = 0; i < 50; i++) fails(`user ${String(i)}`, '192.0.2.1')
  expect(limit.waitSeconds('grace', '192.0.2.1')).toBe(1)
  expect(limit.waitSeconds('ada', '192.0.2.1')).toBeUndefined()
})

test('names that an address sends beyond its limit push out no counted failure', () => {
  const { limit, fails } = aLimit()
  fails('ada', '192.0.2.1')
  for (let i = 0; i < 20_000; i++) fails(`name ${String(i)}`, '192.0.2.2', 1)
  expect(limit.waitSeconds('name', '192.0.2.2')).toBe(1)
  expect(limit.waitSeconds('ada', '192.0.2.1')).toBe(60)
})

test('failures of requests that an address sent in parallel push out no counted failure', () => {
  const { limit, fails } = aLimit()
  fails('ada', '192.0.2.1')
  for (let i = 0; i < 20_000; i++) limit.failed(`name ${String(i)}`, '192.0.2.2')
  expect(limit.waitSeconds('ada', '192.0.2.1')).toBe(60)
})

test('the addresses of an IPv6 /64 are one, and IPv4 addresses are apart in IPv6 form too', () => {
  const { limit, fails } = aLimit()
  expect([1, 2, 3].map((n) => fails('ada', `2001:db8::${String(n)}`, 4))).toEqual([4, 4, 2])
  expect(limit.waitSeconds('ada', '2001:db8:0:1::1')).toBeUndefined()
  fails('grace', '::ffff:192.0.2.1')
  expect(limit.waitSeconds('grace', '192.0.2.1')).toBe(60)
  expect(limit.waitSeconds('grace', '::ffff:192.0.2.2')).toBeUndefined()
})

test('names of any length are one subject up to 254 characters, so memory is bounded', () => {
  const { limit, fails } = aLimit()
  fails('a'.repeat(254), '192.0.2.1')
  expect(limit.waitSeconds(`${'a'.repeat(254)}b`, '192.0.2.1')).toBe(60)
  for (const address of ['', 'unix:', 'x:y']) expect(fails('ada', address, 20)).toBe(10)
})
