import { expect, test } from 'vitest'
import { priceOf, Share, Shares, UNKNOWN_PEERS } from '../../../../src/imdsd/guest/share.ts'
import { sizeFaults } from '../../../../src/metadata/record.ts'
import { buildTree } from '../../../../src/metadata/tree.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { theLargestInstance } from '../../../support/fixtures/instance.ts'

const GUEST = { burst: 600, perSecond: 100, connections: 64 }

/** How many requests a share allows at once, at most `most`. */
function atOnce(share: Share, nowMs: number, paths: number, most = 10_000): number {
  let through = 0
  while (through < most && share.spend(nowMs, { paths })) through += 1
  return through
}

test('F1: a guest may send 600 requests at once, and 100 a second from then on', () => {
  const share = new Share(GUEST)
  expect(atOnce(share, 0, 50)).toBe(600)
  expect(atOnce(share, 1_000, 50)).toBe(100)
  expect(atOnce(share, 1_010, 50)).toBe(1)
  expect(atOnce(share, 1_000_000, 50)).toBe(600)
})

test('F1: a guest with a large tree may read all of it five times at once', () => {
  expect(atOnce(new Share(GUEST), 0, 1_000)).toBe(5_000)
})

test('F1: the bounds of a record limit the burst of its guest to 19,815 requests', () => {
  const largest = theLargestInstance()
  expect(sizeFaults(largest)).toEqual([])
  const tree = buildTree(parsed(largest), Buffer.from('x'), { domain: 'example.com', partition: 'example' })
  expect(atOnce(new Share(GUEST), 0, tree.size, 100_000)).toBe(19_815)
})

test('F1: refused requests cost no tokens: a guest that keeps asking still gets its rate', () => {
  const share = new Share(GUEST)
  atOnce(share, 0, 50)
  let through = 0
  for (let ms = 0; ms <= 10_000; ms++) if (share.spend(ms, { paths: 50 })) through += 1
  expect(through).toBe(1_000)
})

test.each([
  [
    'a real request',
    `/latest/meta-data/tags/instance/${'%61'.repeat(255)}`,
    ['Host', 'x', 'User-Agent', 'y'.repeat(200)],
    1,
  ],
  ['2,048 characters', '/'.repeat(1_024), ['a'.repeat(92), 'b'.repeat(900)], 1],
  ['twice as much', '/'.repeat(2_048), ['a'.repeat(1_116), 'b'.repeat(900)], 2],
  ['1,024 headers of 2 characters', '', Array.from({ length: 2_048 }, () => 'a'), 17],
])('A9: the size of %s is paid for by the share', (_what, target, headers, requests) => {
  expect(priceOf(target, headers)).toBe(requests)
})

test("F2: for each request of a peer's share, 128 KiB may be read and discarded besides", () => {
  const MIB = 2 ** 20
  const share = new Share(GUEST)
  const discarded = (nowMs: number) => {
    let bytes = 0
    while (share.discard(nowMs, 131_072)) bytes += 131_072
    return bytes / MIB
  }
  expect(discarded(0)).toBe(75)
  expect(discarded(1_000)).toBe(12.5)
  expect(share.isFull(1_000)).toBe(false)
  expect(atOnce(share, 1_000, 50)).toBe(600)
  expect([share.isFull(6_900), share.isFull(7_001)]).toEqual([false, true])
})

test('F2: after a flood nothing of a peer is read in vain for 5 s, however many connections flooded', () => {
  const share = new Share(GUEST)
  for (let i = 0; i < 64; i++) share.noteFlood(1_000)
  expect([5_999, 6_011].map((nowMs) => share.discard(nowMs, 0))).toEqual([false, true])
})

test('F2: one unknown peer may discard only a fraction of the common share, and affects no other', () => {
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  const discards = (address: string, most = 100_000) => {
    let times = 0
    while (times < most && shares.ofUnknown('default', address).discard(0, 131_072)) times += 1
    return times
  }
  const peers = Math.floor(UNKNOWN_PEERS.total.burst / UNKNOWN_PEERS.perPeer.burst)
  for (let i = 0; i < peers; i++) {
    expect(discards(`10.0.0.${i}`)).toBe(UNKNOWN_PEERS.perPeer.burst)
    for (let again = 0; again < 100; again++) expect(discards(`10.0.0.${i}`)).toBe(0)
  }
  expect(discards('10.0.1.1')).toBe(UNKNOWN_PEERS.total.burst - peers * UNKNOWN_PEERS.perPeer.burst)
})

test('F1: an unknown peer gets only a fraction of the share of all unknown peers', () => {
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  const { perPeer, total } = UNKNOWN_PEERS
  for (const what of ['burst', 'perSecond', 'connections'] as const)
    expect(perPeer[what] / total[what]).toBeLessThanOrEqual(1 / 60)
  expect(atOnce(shares.ofUnknown('default', '10.0.0.1'), 0, 0)).toBe(perPeer.burst)
  expect(atOnce(shares.ofUnknown('default', '10.0.0.2'), 0, 0)).toBe(perPeer.burst)
  expect(atOnce(shares.ofUnknown('other', '10.0.0.1'), 0, 0)).toBe(perPeer.burst)
  let through = 3 * perPeer.burst
  for (let i = 0; i < 200; i++) through += atOnce(shares.ofUnknown('default', `10.0.1.${i}`), 0, 0)
  expect(through).toBe(total.burst)
  expect(atOnce(shares.of('srv-a'), 0, 50)).toBe(600)
})

test('F1: discarded bytes have their own bucket: 128 KiB for each request of the share', () => {
  const atOnceBytes = (share: Share, nowMs: number) => {
    let pieces = 0
    while (pieces < 100_000 && share.discard(nowMs, 65_536)) pieces += 1
    return pieces * 65_536
  }
  const share = new Share(GUEST)
  expect(atOnceBytes(share, 0)).toBe(GUEST.burst * 131_072 - 65_536) // the rest is less than the bytes of a request
  expect(atOnceBytes(share, 1_000)).toBe(GUEST.perSecond * 131_072)
  expect([atOnce(share, 1_000, 50), share.isFull(6_000)]).toEqual([GUEST.burst, false])
  expect([share.isFull(6_999), share.isFull(7_000)]).toEqual([false, true])
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  let bytes = 0
  for (let i = 0; i < 100; i++) bytes += atOnceBytes(shares.ofUnknown('default', `10.0.1.${i}`), 0)
  expect(bytes).toBe(UNKNOWN_PEERS.total.burst * 131_072 - 65_536)
})

test('F1: the addresses of an IPv6 /64 have one share', () => {
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  const share = shares.ofUnknown('default', '2001:db8::1')
  expect(shares.ofUnknown('default', '2001:db8::ffff:ffff:ffff:ffff')).toBe(share)
  expect(shares.ofUnknown('default', '2001:db8:0:1::1')).not.toBe(share)
  expect(shares.ofUnknown('default', '::1')).not.toBe(share)
})

test('F1: connections of an unknown peer beyond its share take nothing from the others', () => {
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  const { perPeer, total } = UNKNOWN_PEERS
  const attacker = shares.ofUnknown('default', '10.0.0.1')
  for (let i = 0; i < 10 * total.connections; i++) attacker.addConnection()
  const left = total.connections - perPeer.connections
  for (let i = 0; i < left; i++)
    expect(shares.ofUnknown('default', `10.1.${i >> 8}.${i & 255}`).addConnection()).toBeLessThanOrEqual(1)
  const late = shares.ofUnknown('default', '10.0.0.2')
  const finds = () => {
    const used = late.addConnection()
    late.removeConnection()
    return used
  }
  expect(finds()).toBeGreaterThan(1)
  for (let i = perPeer.connections; i < 10 * total.connections; i++) attacker.removeConnection()
  expect(finds()).toBeGreaterThan(1)
  for (let i = 0; i < perPeer.connections; i++) attacker.removeConnection()
  for (let i = 0; i < perPeer.connections; i++) expect(late.addConnection()).toBeLessThanOrEqual(1)
})

test('F1: the number of shares of unknown peers is bounded, and the least recently used one goes', () => {
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  const [open, used, unused] = ['10.0.0.1', '10.0.0.2', '10.0.0.3'].map((address) =>
    shares.ofUnknown('default', address),
  )
  open!.addConnection()
  for (let i = 0; i < 10_000; i++) {
    shares.ofUnknown('default', '10.0.0.2')
    shares.ofUnknown('default', `2001:db8:${i.toString(16)}::1`)
  }
  expect(shares.size).toBe(4_096)
  expect(shares.ofUnknown('default', '10.0.0.1')).toBe(open)
  expect(shares.ofUnknown('default', '10.0.0.2')).toBe(used)
  expect(shares.ofUnknown('default', '10.0.0.3')).not.toBe(unused)
})

test('a share is kept while it is used, and dropped once it is full again', () => {
  const shares = new Shares(GUEST, UNKNOWN_PEERS)
  for (let i = 0; i < 1_000; i++) shares.of(`srv-${i}`).spend(0)
  const busy = shares.of('srv-7')
  busy.addConnection()
  shares.sweep(0)
  expect(shares.size).toBe(1_000)
  shares.sweep(10)
  expect(shares.size).toBe(1)
  expect(shares.of('srv-7')).toBe(busy)
  shares.ofUnknown('default', '10.0.0.1').spend(0)
  busy.removeConnection()
  shares.sweep(100)
  expect(shares.size).toBe(0)
})
