import { expect, test } from 'vitest'
import { settle } from '../../../../src/imdsd/view/later-claims.ts'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import { rangesOf } from '../../../../src/metadata/instance.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const MAC = '02:24:19:00:00:ee'

function record(id: string, order: number, one: Record<string, unknown>): ValidRecord {
  const instance = parsed(anInstance({ id, interfaces: [{ id: `i-${id}`, macAddress: MAC, ...one }] }))
  return { instance, userData: undefined, digest: id, order, lost: [] }
}
const ranges = ({ instance }: ValidRecord) => rangesOf(instance).map(({ range }) => range)
const lost = (one: ValidRecord) => one.lost.map(({ range }) => range)

test('invariant 7: the instance that was published later keeps a range, whichever is read first', () => {
  const early = record('srv-a', 1, { ipv4Addresses: ['10.0.0.2/30', '10.0.0.5/30'] })
  const late = record('srv-b', 2, { ipv4Addresses: ['10.0.0.2/30'] })
  const [second, first] = [settle(late, [], [early]), settle(early, [], [late])]
  expect([second.record, second.losers.map(ranges), second.losers.map(lost)]).toEqual([
    late,
    [['10.0.0.5']],
    [['10.0.0.2']],
  ])
  expect([ranges(first.record), lost(first.record), first.losers]).toEqual([['10.0.0.5'], ['10.0.0.2'], []])
})

test('invariant 7: of two instances of the same order both keep the range, which is contested', () => {
  const [a, b] = ['srv-a', 'srv-b'].map((id) => record(id, 0, { ipv4Addresses: ['10.0.0.2/30'] })) as [
    ValidRecord,
    ValidRecord,
  ]
  expect(settle(a, [], [b])).toEqual({ record: a, losers: [] })
})

test('what an instance does not lose stays the same object, and what it lost before stays lost', () => {
  const before = [{ network: 'red', range: '10.0.0.9', order: 2 }]
  const a = { ...record('srv-a', 1, { ipv4Addresses: ['10.0.0.5/30'] }), lost: before }
  const apart = settle(record('srv-b', 2, { ipv4Addresses: ['10.0.0.5/30'], network: 'red' }), [], [a])
  expect(apart.losers).toEqual([])
  const { losers } = settle(record('srv-b', 2, { ipv4Addresses: ['10.0.0.5/30'] }), [], [a])
  expect(losers.map(lost)).toEqual([['10.0.0.9', '10.0.0.5']])
})

test('E3: what an instance has lost stays lost until it is published after that', () => {
  const known = [{ network: 'default', range: '10.0.0.2', order: 5 }]
  const at = (order: number) => settle(record('srv-a', order, { ipv4Addresses: ['10.0.0.2/30'] }), known, []).record
  expect([1, 4, 6].map((order) => [ranges(at(order)), at(order).lost])).toEqual([
    [[], known],
    [[], known], // it was published before the loss, and is read after the store went back
    [['10.0.0.2'], []],
  ])
})

test.each([
  ['a lost address is in a prefix', ['fd00:1::/64', 'fd00:2::/64'], [], [], ['fd00:1::5'], ['fd00:2::/64']],
  ['a lost prefix has an address', [], ['fd00:1::5', 'fd00:2::5'], ['fd00:1::/64'], [], ['fd00:2::5']],
  ['a lost prefix is in a prefix', ['fd00:1::/48', 'fd00:2::/64'], [], ['fd00:1::/64'], [], ['fd00:2::/64']],
] as const)('invariant 7: %s', (_what, ipv6Prefixes, ipv6Addresses, prefixes, addresses, kept) => {
  const early = record('srv-a', 1, { ipv6Prefixes, ipv6Addresses })
  const late = record('srv-b', 2, { ipv6Prefixes: prefixes, ipv6Addresses: addresses })
  expect(settle(late, [], [early]).losers.map(ranges)).toEqual([[...kept]])
})
