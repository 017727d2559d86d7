import { expect, test } from 'vitest'
import { forEachOf } from '../../../src/limits/for-each-of.ts'

test('no more tasks run at the same time than allowed', async () => {
  let [running, most, done] = [0, 0, 0]
  await forEachOf(
    Array.from({ length: 50 }, (_, i) => i),
    async () => {
      most = Math.max(most, ++running)
      await new Promise(setImmediate)
      running -= 1
      done += 1
    },
    7,
  )
  expect([most, done]).toEqual([7, 50])
})

test('after a task fails, no other begins', async () => {
  const begun: number[] = []
  const all = forEachOf(
    [0, 1, 2, 3, 4, 5],
    async (value) => {
      begun.push(value)
      await new Promise(setImmediate)
      if (value === 0) throw new Error('no')
    },
    2,
  )
  await expect(all).rejects.toThrow('no')
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate)
  expect(begun).toEqual([0, 1])
})
