import { expect, test } from 'vitest'
import { addressAt, numberIn, overlap, parseRange } from '../../../../src/imds-api/model/pools.ts'
import type { PoolKind } from '../../../../src/imds-api/model/pools.ts'

function rangeOf(kind: PoolKind, text: string) {
  const parsed = parseRange(kind, text)
  if (!parsed.ok) throw new Error(parsed.faults.join())
  return parsed.value
}

test.each<[PoolKind, string, number, string, string, number | undefined]>([
  // without the network and its broadcast address
  ['private_ipv4', '10.0.0.0/16', 65_534, '10.0.0.1', '10.0.255.254', 16],
  ['private_ipv4', '10.0.0.77/24', 254, '10.0.0.1', '10.0.0.254', 24],
  ['private_ipv4', '10.0.0.0/31', 2, '10.0.0.0', '10.0.0.1', 31],
  ['private_ipv4', '10.0.0.9/32', 1, '10.0.0.9', '10.0.0.9', 32],
  ['public_ipv4', '203.0.113.10-203.0.113.99', 90, '203.0.113.10', '203.0.113.99', undefined],
  ['public_ipv4', '127.0.0.2 - 127.0.0.2', 1, '127.0.0.2', '127.0.0.2', undefined],
  ['public_ipv6', '2001:db8::/126', 3, '2001:db8::1', '2001:db8::3', 126],
  ['public_ipv6', '2001:db8::a-2001:db8::1f', 22, '2001:db8::a', '2001:db8::1f', undefined],
  ['mac', '02:24:19:00:00:00/24', 16_777_216, '02:24:19:00:00:00', '02:24:19:ff:ff:ff', undefined],
  ['mac', '02:24:19:00:00:04/46', 4, '02:24:19:00:00:04', '02:24:19:00:00:07', undefined],
])('%s %s has %d addresses, from %s to %s', (kind, text, size, first, last, prefixLength) => {
  const range = rangeOf(kind, text)
  expect([Number(range.size), range.prefixLength]).toEqual([size, prefixLength])
  expect([addressAt(range, 0), addressAt(range, size - 1)]).toEqual([first, last])
  expect([numberIn(range, first), numberIn(range, last)]).toEqual([0, size - 1])
})

test('an address outside of a range, or of another kind, has no number', () => {
  const range = rangeOf('public_ipv4', '203.0.113.10-203.0.113.99')
  for (const address of ['203.0.113.9', '203.0.113.100', '2001:db8::1', '203.0.113.0/24', ''])
    expect(numberIn(range, address)).toBeUndefined()
  expect(numberIn(rangeOf('mac', '02:24:19:00:00:00/24'), '02:24:20:00:00:00')).toBeUndefined()
})

test('a huge range is cut where its numbers would not be exact', () => {
  const range = rangeOf('public_ipv6', '2001:db8::/32')
  expect(range.size).toBe(2n ** 48n)
  expect(addressAt(range, 2 ** 48 - 1)).toBe('2001:db8:0:0:1::')
})

test('a huge range overlaps also beyond the addresses that it gives', () => {
  const huge = rangeOf('public_ipv6', '2001:db8::/32')
  expect(overlap(huge, rangeOf('public_ipv6', '2001:db8:ffff::/48'))).toBe(true)
  expect(overlap(huge, rangeOf('public_ipv6', '2001:db9::/48'))).toBe(false)
})

test.each<[PoolKind, string]>([
  ['private_ipv4', '10.0.0.0'],
  ['private_ipv4', '10.0.0.0/33'],
  ['private_ipv4', '2001:db8::/64'],
  ['private_ipv4', '10.0.0.9-10.0.0.1'],
  ['private_ipv4', '10.0.0.1-10.0.0.2-10.0.0.3'],
  ['private_ipv4', '10.0.0.1-'],
  ['private_ipv4', '10.0.0.0/24-10.0.1.0/24'],
  ['public_ipv6', '10.0.0.0/8'],
  ['public_ipv6', '2001:db8::'],
  ['public_ipv6', '2001:db8::/64-2001:db8::1'],
  ['public_ipv4', ''],
  ['mac', '02:24:19:00:00:00'],
  ['mac', '02:24:19:00:00:01/24'],
  ['mac', '02:24:19:00:00:00/47'],
  ['mac', '03:24:19:00:00:00/24'],
  ['mac', '02-24-19-00-00-00/24'],
  ['mac', '10.0.0.0/8'],
])('%s: "%s" is refused', (kind, text) => {
  expect(parseRange(kind, text)).toEqual({ ok: false, faults: [expect.stringMatching(/ is not an? /)] })
})
