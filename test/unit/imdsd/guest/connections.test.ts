import { EventEmitter } from 'node:events'
import { IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import { expect, test } from 'vitest'
import { GuestConnections } from '../../../../src/imdsd/guest/connections.ts'
import { closeSoon } from '../../../../src/imdsd/guest/linger.ts'
import { Share } from '../../../../src/imdsd/guest/share.ts'

const GUEST = { burst: 600, perSecond: 100, connections: 64 }

/** A socket as `Connections` sees it. */
class FakeSocket extends EventEmitter {
  readonly _handle = { writeQueueSize: 0 }
  writableLength = 0
  bytesRead = 0
  wasReset = false
  destroyed = false
  resetAndDestroy() {
    this.wasReset = this.destroyed = true
    this.emit('close')
  }
}

test('F2: a connection whose response is not read is ended, whatever it sends, and no other', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const [stalled, slow] = [new FakeSocket(), new FakeSocket()]
  for (const socket of [stalled, slow]) connections.add(socket as unknown as Socket, share, 'srv-a')
  // the stream counts the whole response until its last byte is written
  stalled.writableLength = slow.writableLength = 1_000
  stalled._handle.writeQueueSize = slow._handle.writeQueueSize = 1_000
  let ended = 0
  for (let ms = 5_000; ms <= 60_000; ms += 5_000) {
    slow._handle.writeQueueSize -= 1
    stalled.bytesRead += 100
    ended += connections.check(ms).stalled
  }
  expect([stalled.wasReset, slow.wasReset, ended]).toEqual([true, false, 1])
})

test('F1: a closed connection makes room for another', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const sockets = Array.from({ length: 65 }, () => new FakeSocket())
  const used = sockets.map((socket) => connections.add(socket as unknown as Socket, share, 'srv-a'))
  expect(used.filter((part) => part > 1)).toHaveLength(1)
  sockets[0]!.emit('close')
  sockets[1]!.emit('close')
  expect(connections.add(new FakeSocket() as unknown as Socket, share, 'srv-a')).toBeLessThanOrEqual(1)
})

test('F2: progress of a response restarts its timeout, and a stalled one ends after 20 s', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const [socket, reader] = [new FakeSocket(), new FakeSocket()]
  for (const one of [socket, reader]) connections.add(one as unknown as Socket, share, 'srv-a')
  socket._handle.writeQueueSize = reader._handle.writeQueueSize = 1_000
  const stalled = (nowMs: number) => connections.check(nowMs).stalled
  expect(stalled(0)).toBe(0)
  reader._handle.writeQueueSize = 999
  expect([stalled(19_999), socket.wasReset]).toEqual([0, false])
  expect([stalled(20_000), socket.wasReset, reader.wasReset]).toEqual([1, true, false])
  expect([stalled(39_998), stalled(39_999), reader.wasReset]).toEqual([0, 1, true])
})

const request = (connections: GuestConnections, socket: FakeSocket) => {
  connections.addRequest(socket as unknown as Socket, new ServerResponse(new IncomingMessage(new Socket())), 'srv-a')
}

test('F2: a connection that sends bytes but no request is ended after 20 s', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const [dripping, asking, receiving] = [new FakeSocket(), new FakeSocket(), new FakeSocket()]
  for (const one of [dripping, asking, receiving]) connections.add(one as unknown as Socket, share, 'srv-a')
  const check = (ms: number) => {
    for (const socket of [dripping, receiving]) socket.bytesRead += 2
    asking.bytesRead += 65_536
    request(connections, asking)
    receiving._handle.writeQueueSize += 1_000
    return connections.check(ms)
  }
  for (const ms of [0, 5_000, 10_000, 15_000, 19_999]) expect(check(ms)).toEqual({ flooding: 0, stalled: 0 })
  expect(check(20_000)).toEqual({ flooding: 0, stalled: 1 })
  expect([dripping, asking, receiving].map(({ wasReset }) => wasReset)).toEqual([true, false, false])
})

test.each([
  [0, 65_536],
  [1, 2 * 65_536],
])('F2: a connection with %i requests is ended, above %i bytes', (requests, most) => {
  for (const over of [0, 1]) {
    const [connections, share, socket] = [new GuestConnections(), new Share(GUEST), new FakeSocket()]
    connections.add(socket as unknown as Socket, share, 'srv-a')
    connections.check(0)
    socket.bytesRead = most + over
    for (let i = 0; i < requests; i++) request(connections, socket)
    expect(connections.check(5_000)).toEqual({ flooding: over, stalled: 0 })
    expect(socket.wasReset).toBe(over === 1)
  }
})

test('E6: the connections of an instance are reset where it has lost the address, and no others', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const sockets = Array.from({ length: 9 }, () => new FakeSocket())
  sockets.forEach((one, i) => connections.add(one as unknown as Socket, share, i % 3 === 0 ? 'srv-a' : 'srv-b'))
  for (const i of [8, 0, 4]) sockets[i]!.emit('close')
  const isLost = (socket: unknown) => socket !== sockets[7]
  expect(connections.endOf('srv-a', isLost)).toBe(2)
  expect(sockets.map(({ wasReset }) => wasReset)).toEqual([false, false, false, true, false, false, true, false, false])
  expect([connections.endOf('srv-a', isLost), connections.endOf('srv-b', isLost), sockets[7]!.wasReset]).toEqual([
    0,
    3,
    false,
  ])
})

test('E6: a connection belongs to the instance of its last request, or that a lookup has found', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const [asking, lookedUp] = [new FakeSocket(), new FakeSocket()]
  for (const socket of [asking, lookedUp]) connections.add(socket as unknown as Socket, share, undefined)
  request(connections, asking)
  connections.setOwner(lookedUp as unknown as Socket, 'srv-a')
  expect(connections.endOf('srv-a', () => true)).toBe(2)
})

test('lingering connections are ended, or all of them', () => {
  const connections = new GuestConnections()
  const [lingering, open] = [new Socket(), new Socket()]
  for (const socket of [lingering, open]) connections.add(socket, new Share(GUEST), 'srv-a')
  expect([connections.shareOf(open)?.isOpen, connections.shareOf(new Socket())]).toEqual([true, undefined])
  closeSoon(lingering, '', 60_000, () => true)
  connections.endLingering()
  expect([lingering.destroyed, open.destroyed]).toEqual([true, false])
  connections.destroyAll()
  expect(open.destroyed).toBe(true)
})

test('a connection knows the response to its last request, until no response may follow', () => {
  const connections = new GuestConnections()
  const socket = new FakeSocket() as unknown as Socket
  const anAnswer = () => new ServerResponse(new IncomingMessage(socket))
  const [first, second] = [anAnswer(), anAnswer()]
  connections.addRequest(socket, first, 'srv-a') // not a connection of this listener
  expect(connections.currentResponse(socket)).toBeUndefined()
  connections.add(socket, new Share(GUEST), 'srv-a')
  connections.addRequest(socket, first, 'srv-a')
  connections.addRequest(socket, second, 'srv-a')
  expect([connections.currentResponse(socket), connections.isEnding(socket)]).toEqual([second, false])
  connections.addRequest(socket, first, 'srv-a')
  connections.beginEnd(socket)
  expect([connections.currentResponse(socket), connections.isEnding(socket)]).toEqual([undefined, true])
  connections.addRequest(socket, second, 'srv-a') // a request that had been read before
  expect([connections.currentResponse(socket), connections.isEnding(socket)]).toEqual([second, false])
})

test('H1: a connection whose request is held is not idle, however long that takes', () => {
  const [connections, share] = [new GuestConnections(), new Share(GUEST)]
  const [held, idle] = [new FakeSocket(), new FakeSocket()]
  for (const socket of [held, idle]) connections.add(socket as unknown as Socket, share, 'srv-a')
  const response = new ServerResponse(new IncomingMessage(new Socket()))
  connections.addRequest(held as unknown as Socket, response, 'srv-a')
  for (let ms = 500; ms <= 600_000; ms += 500) connections.check(ms)
  expect([held.wasReset, idle.wasReset]).toEqual([false, true])
  response.end()
  for (let ms = 600_500; ms <= 630_000; ms += 500) connections.check(ms)
  expect(held.wasReset).toBe(true)
})
