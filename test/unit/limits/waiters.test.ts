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
