import { IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { HeldRequests, type Wake } from '../../../../src/imdsd/guest/held-requests.ts'

beforeEach(() => vi.useFakeTimers())
afterEach(() => vi.useRealTimers())

/** Holds a request, and collects why it was woken. `again`: holds it again after a change. */
function hold(held: HeldRequests, id: string, again = false) {
  const wakes: Wake[] = []
  const [response, socket] = [new ServerResponse(new IncomingMessage(new Socket())), new Socket()]
  const woken = (wake: Wake) => {
    wakes.push(wake)
    if (again && wake === 'changed') held.hold(id, { request: { socket }, response }, 1_000, woken)
  }
  held.hold(id, { request: { socket }, response }, 1_000, woken)
  return { wakes, response, socket }
}

test('H1: a change wakes the held requests of its instance, once', () => {
  const held = new HeldRequests()
  const [answered, same, other] = [hold(held, 'a'), hold(held, 'a', true), hold(held, 'b')]
  held.wake('a')
  held.wake('a')
  vi.advanceTimersByTime(1_000)
  expect([answered.wakes, same.wakes, other.wakes]).toEqual([['changed'], ['changed', 'changed', 'ended'], ['ended']])
  expect(held.size).toBe(0)
})

test('H1: a request whose connection closes is held no more', () => {
  const held = new HeldRequests()
  const gone = hold(held, 'a')
  gone.response.emit('close')
  held.wake('a')
  vi.advanceTimersByTime(1_000)
  expect([gone.wakes, held.size, vi.getTimerCount()]).toEqual([[], 0, 0])
})

test('H1: a request whose peer closes its side is answered: the peer may be gone', () => {
  const held = new HeldRequests()
  const { socket, wakes } = hold(held, 'a')
  socket.emit('end')
  expect([wakes, held.size, vi.getTimerCount()]).toEqual([['ended'], 0, 0])
})

test('H1: a request whose peer has closed its side before is answered at once', () => {
  const held = new HeldRequests()
  const wakes: Wake[] = []
  for (const state of [{ readableEnded: true }, { destroyed: true }]) {
    const [response, socket] = [new ServerResponse(new IncomingMessage(new Socket())), new Socket()]
    for (const [name, value] of Object.entries(state)) Object.defineProperty(socket, name, { value })
    held.hold('a', { request: { socket }, response }, 1_000, (wake) => wakes.push(wake))
  }
  expect([wakes, held.size, vi.getTimerCount()]).toEqual([['ended', 'ended'], 0, 0])
})

test('H1: an instance may have 8 held requests', () => {
  const held = new HeldRequests()
  for (let i = 0; i < 8; i++) {
    expect(held.mayHold('a')).toBe(true)
    hold(held, 'a')
  }
  expect([held.mayHold('a'), held.mayHold('b')]).toEqual([false, true])
})

test('H1: a stop ends all held requests, and leaves no timer and no listener', () => {
  const held = new HeldRequests()
  const all = [hold(held, 'a'), hold(held, 'b', true)]
  held.stop()
  expect(all.map(({ wakes }) => wakes)).toEqual([['stop'], ['stop']])
  const own = new Socket().listenerCount('end')
  for (const { response, socket } of all)
    expect([response.listenerCount('close'), socket.listenerCount('end') - own]).toEqual([0, 0])
  expect([held.isStopping, held.size, vi.getTimerCount()]).toEqual([true, 0, 0])
})
