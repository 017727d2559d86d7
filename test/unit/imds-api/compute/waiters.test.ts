import { expect, test } from 'vitest'
import { Waiters } from '../../../../src/imds-api/compute/waiters.ts'

const NEVER = 2 ** 31 - 1

test('a wake before the wait is not lost, and counts once', async () => {
  const waiters = new Waiters()
  const waiter = waiters.watch('hv-1')
  waiters.wake('hv-1')
  await waiter.wait(NEVER)
  const order: string[] = []
  const second = waiter.wait(NEVER).then(() => order.push('resumed'))
  await Promise.resolve()
  order.push('still waits')
  waiters.wake('hv-1')
  await second
  expect(order).toEqual(['still waits', 'resumed'])
})

test('a wake is for one hypervisor, or for all', async () => {
  const waiters = new Waiters()
  const [one, two] = [waiters.watch('hv-1'), waiters.watch('hv-2')]
  const order: string[] = []
  const waits = [one.wait(NEVER).then(() => order.push('one')), two.wait(NEVER).then(() => order.push('two'))]
  waiters.wake('hv-2')
  await waits[1]
  expect(order).toEqual(['two'])
  waiters.wake('')
  await Promise.all(waits)
  expect(order).toEqual(['two', 'one'])
})

test('a wait ends after its time, and a closed one at once', async () => {
  const waiters = new Waiters()
  const waiter = waiters.watch('hv-1')
  await waiter.wait(1)
  expect(waiters.isClosed).toBe(false)
  waiters.close()
  await waiter.wait(NEVER)
  await waiter.wait(NEVER)
  expect(waiters.isClosed).toBe(true)
  waiter.end()
  waiters.wake('hv-1')
})
