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
