import { setImmediate as turn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Slots } from '../../../src/identity/slots.ts'

test('no more tasks run than there are slots; the others follow in order, also after a failure', async () => {
  const slots = new Slots(2)
  const started: number[] = []
  const tasks = [0, 1, 2, 3].map(() => Promise.withResolvers<number>())
  const results = tasks.map(({ promise }, n) =>
    slots.use(() => {
      started.push(n)
      return promise
    }),
  )
  await turn()
  expect(started).toEqual([0, 1])
  tasks[1]!.reject(new Error('one fails'))
  await expect(results[1]).rejects.toThrow('one fails')
  expect(started).toEqual([0, 1, 2])
  for (const n of [0, 2, 3]) tasks[n]!.resolve(n)
  expect(await Promise.all([results[0], results[2], results[3]])).toEqual([0, 2, 3])
  expect(await slots.use(() => Promise.resolve('free again'))).toBe('free again')
})
