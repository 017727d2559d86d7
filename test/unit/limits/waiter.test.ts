import { expect, test } from 'vitest'
import { Waiter } from '../../../src/limits/waiter.ts'

const NEVER = 2 ** 31 - 1

test('a wake before the wait is not lost, and counts once', async () => {
  const waiter = new Waiter()
  waiter.wake()
  await waiter.wait(NEVER)
  const order: string[] = []
  const second = waiter.wait(NEVER).then(() => order.push('resumed'))
  await Promise.resolve()
  order.push('still waits')
  waiter.wake()
  await second
  expect(order).toEqual(['still waits', 'resumed'])
})

test('a wait ends after its time', async () => {
  await new Waiter().wait(1)
})
