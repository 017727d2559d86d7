import { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import { expect, test } from 'vitest'
import { Connections } from '../../../src/guest/connections.ts'
import { Share, Shares, STRANGERS } from '../../../src/guest/share.ts'

const GUEST = { burst: 600, perSecond: 100, connections: 64 }

/** How many requests a share lets through at once, at most `most`. */
function atOnce(share: Share, nowMs: number, paths: number, most = 10_000): number {
  let through = 0
  while (through < most && share.spend(nowMs, { paths })) through += 1
  return through
}

test('F1: a guest may ask 600 times at once, and 100 times a second from then on', () => {
  const share = new Share(GUEST)
  expect(atOnce(share, 0, 50)).toBe(600)
  expect(atOnce(share, 1_000, 50)).toBe(100)
  expect(atOnce(share, 1_010, 50)).toBe(1)
  expect(atOnce(share, 1_000_000, 50)).toBe(600)
})

test('F1: a guest with a large tree may read five times all of it at once', () => {
  expect(atOnce(new Share(GUEST), 0, 1_000)).toBe(5_000)
})

test('F1: what is refused costs nothing: a guest that goes on asking gets its rate all the same', () => {
  const share = new Share(GUEST)
  atOnce(share, 0, 50)
  let through = 0
  for (let ms = 0; ms <= 10_000; ms++) if (share.spend(ms, { paths: 50 })) through += 1
  expect(through).toBe(1_000)
})

test('F1: what a guest made us do beyond its share is held against it, for a bounded time', () => {
  const share = new Share(GUEST)
  expect(share.isInDebt(0)).toBe(false)
  for (let i = 0; i < 250; i++) share.charge()
  expect([share.isInDebt(2_499), share.isInDebt(2_500)]).toEqual([true, false])
  for (let i = 0; i < 1_000_000; i++) share.charge()
  expect([share.isInDebt(2_500 + 59_999), share.isInDebt(2_500 + 60_000)]).toEqual([true, false])
})

test('F1: strangers share one, and it is larger', () => {
  const shares = new Shares(GUEST, STRANGERS)
  expect(atOnce(shares.strangers, 0, 0)).toBe(STRANGERS.burst)
  expect(atOnce(shares.of('srv-a'), 0, 50)).toBe(600)
})

test('a share is remembered while it is used, and forgotten once it is whole', () => {
  const shares = new Shares(GUEST, STRANGERS)
  for (let i = 0; i < 1_000; i++) shares.of(`srv-${String(i)}`).spend(0, null)
  const busy = shares.of('srv-7')
  busy.opened()
  shares.sweep(0)
  expect(shares.size).toBe(1_000)
  shares.sweep(10)
  expect(shares.size).toBe(1)
  expect(shares.of('srv-7')).toBe(busy)
  busy.closed()
  shares.sweep(10)
  expect(shares.size).toBe(0)
})

/** A socket as `Connections` sees it. */
class FakeSocket extends EventEmitter {
  writableLength = 0
  bytesRead = 0
  wasReset = false
  resetAndDestroy() {
    this.wasReset = true
    this.emit('close')
  }
}

test('F2: a connection whose answer is not taken is ended, and no other', () => {
  const [connections, share] = [new Connections(), new Share(GUEST)]
  const [stalled, slow, idle] = [new FakeSocket(), new FakeSocket(), new FakeSocket()]
  for (const socket of [stalled, slow, idle]) connections.add(socket as unknown as Socket, share)
  stalled.writableLength = slow.writableLength = 1_000
  let ended = 0
  for (let ms = 5_000; ms <= 60_000; ms += 5_000) {
    slow.writableLength -= 1
    ended += connections.endStalled(ms)
  }
  expect([stalled.wasReset, slow.wasReset, idle.wasReset, ended]).toEqual([true, false, false, 1])
})

test('F1: a closed connection makes room for another', () => {
  const [connections, share] = [new Connections(), new Share(GUEST)]
  const sockets = Array.from({ length: 65 }, () => new FakeSocket())
  const used = sockets.map((socket) => connections.add(socket as unknown as Socket, share))
  expect(used.filter((part) => part > 1)).toHaveLength(1)
  sockets[0]!.emit('close')
  sockets[1]!.emit('close')
  expect(connections.add(new FakeSocket() as unknown as Socket, share)).toBeLessThanOrEqual(1)
})
