import { Socket } from 'node:net'
import { expect, test } from 'vitest'
import { Waiter } from '../../../src/limits/waiter.ts'
import { Waiters } from '../../../src/limits/waiters.ts'

const NEVER = 2 ** 31 - 1

test('a wake is for one name, or for all, as at the close', async () => {
  const waiters = new Waiters()
  const [one, two] = [new Waiter(), new Waiter()]
  waiters.add('hv-1', one)
  waiters.add('hv-2', two)
  const order: string[] = []
  const waits = [one.wait(NEVER).then(() => order.push('one')), two.wait(NEVER).then(() => order.push('two'))]
  waiters.wake('hv-2')
  await waits[1]
  expect([order, waiters.isClosed]).toEqual([['two'], false])
  waiters.close()
  await Promise.all(waits)
  expect([order, waiters.isClosed]).toEqual([['two', 'one'], true])
})

test('a request that has ended is not woken', async () => {
  const waiters = new Waiters()
  const waiter = new Waiter()
  waiters.add('hv-1', waiter)
  waiters.remove('hv-1', waiter)
  waiters.wake('hv-1')
  const end = waiter.wait(1).then(() => 'timeout')
  expect(await Promise.race([end, Promise.resolve('waits')])).toBe('waits')
  expect(await end).toBe('timeout')
})

test('a request reads again when it is woken, and not once its peer has gone or after its time', async () => {
  const waiters = new Waiters()
  const times = { waitMs: 60_000, pollMs: 60_000 }
  const socket = new Socket()
  const results = [undefined, 'ready', 'too late']
  const until = (of: Socket, given = times) => waiters.until('hv-1', of, given, () => Promise.resolve(results.shift()))
  const waits = until(socket)
  waiters.wake('hv-1')
  expect([await waits, waiters.size]).toEqual(['ready', 0])
  results.unshift(undefined, undefined)
  expect(await until(socket, { waitMs: 0, pollMs: 1 })).toBeUndefined()
  const left = until(socket)
  socket.destroy()
  expect([await left, results]).toEqual([undefined, ['too late']])
  expect([await until(socket), results.length, socket.listenerCount('close')]).toEqual([undefined, 1, 0])
})
