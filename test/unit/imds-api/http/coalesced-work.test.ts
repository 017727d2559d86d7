import { setImmediate as nextTurn } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { CoalescedWork } from '../../../../src/imds-api/http/coalesced-work.ts'

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout'] }))
afterEach(() => void vi.useRealTimers())

test('work of a key runs once at a time, and once more however often it was asked for meanwhile', async () => {
  const done: string[] = []
  const work = new CoalescedWork<string>(async (key) => {
    done.push(key)
    await nextTurn()
    return false
  })
  const first = work.run('a')
  for (let i = 0; i < 3; i++) void work.run('a')
  await Promise.all([first, work.run('b')])
  expect(done).toEqual(['a', 'b', 'a'])
  await work.run('a')
  expect(done).toHaveLength(4)
})

test('work that has more to do runs again, and work that fails is tried again after a second', async () => {
  const results = [true, undefined, false]
  const work = new CoalescedWork<string>(async () => {
    await nextTurn()
    const result = results.shift()
    if (result === undefined) throw new Error('the database is unreachable')
    return result
  })
  await work.run('a')
  expect(results).toEqual([false])
  vi.advanceTimersByTime(999)
  expect(results).toEqual([false])
  vi.advanceTimersByTime(1)
  await nextTurn()
  await nextTurn()
  expect(results).toEqual([])
})
