import { setImmediate } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { LoopTurns } from '../../../src/limits/loop-turns.ts'

test('a caller begins at most four in a turn of the event loop, in order; others are not held up', async () => {
  const turns = new LoopTurns()
  const begun: string[] = []
  const enter = (caller: string, n: number) => turns.enter(caller, () => begun.push(`${caller}${n}`))
  for (let n = 0; n < 10; n++) enter('a', n)
  enter('b', 0)
  expect(begun).toEqual(['a0', 'a1', 'a2', 'a3', 'b0'])
  for (let n = 1; n < 6; n++) enter('b', n)
  await setImmediate()
  expect(begun.splice(0)).toEqual(['a0', 'a1', 'a2', 'a3', 'b0', 'b1', 'b2', 'b3', 'a4', 'a5', 'a6', 'a7', 'b4', 'b5'])
  enter('a', 10)
  await setImmediate()
  expect(begun).toEqual(['a8', 'a9', 'a10'])
  await setImmediate()
  enter('a', 11)
  expect(begun).toEqual(['a8', 'a9', 'a10', 'a11'])
})
