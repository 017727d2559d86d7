import { setImmediate as turn } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { FairQueue, type FairQueueLimits, type Leave } from '../../../../src/api/http/fair-queue.ts'

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
})
afterEach(() => {
  vi.useRealTimers()
})

/**
 * A queue whose tasks run until they are ended. `started` and `refused` name them in their order. A name that ends with
 * ! is urgent.
 */
function aQueue(limits: Partial<FairQueueLimits> = {}) {
  const queue = new FairQueue({ atOnce: 1, waitingMax: 100, timeoutMs: 1_000, ...limits })
  const [started, refused]: [string[], string[]] = [[], []]
  const leaves = new Map<string, Leave>()
  const enter = async (name: string, { key = 'one', cost = 1 } = {}) => {
    const leave = await queue.enter({ key, caller: name.replace(/\d.*/, ''), cost, isUrgent: name.endsWith('!') })
    if (leave === undefined) refused.push(name)
    else {
      started.push(name)
      leaves.set(name, leave)
    }
  }
  return {
    queue,
    started,
    refused,
    enter: (name: string, task?: { key?: string; cost?: number }) => {
      void enter(name, task)
    },
    end: async (name: string) => {
      await turn()
      leaves.get(name)!()
      await turn()
    },
    settle: () => turn(),
  }
}

test('so many tasks of a key run at once, and other keys do not wait for them', async () => {
  const { enter, started, settle, end } = aQueue({ atOnce: 2 })
  for (const name of ['a1', 'a2', 'a3']) enter(name)
  enter('b1', { key: 'two' })
  await settle()
  expect(started).toEqual(['a1', 'a2', 'b1'])
  await end('a2')
  expect(started).toEqual(['a1', 'a2', 'b1', 'a3'])
})

test('callers take turns, each with its oldest task, and urgent tasks go first', async () => {
  const { enter, started, end } = aQueue()
  for (const name of ['a1', 'a2', 'a3', 'a4', 'b1', 'b2', 'c1', 'a5!', 'a6!', 'b3!']) enter(name)
  for (const name of ['a1', 'a5!', 'b3!', 'a6!', 'a2', 'b1', 'c1', 'a3', 'b2']) await end(name)
  expect(started).toEqual(['a1', 'a5!', 'b3!', 'a6!', 'a2', 'b1', 'c1', 'a3', 'b2', 'a4'])
})

test('beyond the limit the newest task of the caller whose tasks cost the most is refused', async () => {
  const { enter, refused, settle } = aQueue({ waitingMax: 10 })
  enter('a0')
  for (let n = 1; n <= 11; n++) enter(`a${String(n)}`)
  await settle()
  expect(refused).toEqual(['a11'])
  for (const name of ['b1', 'b2']) enter(name)
  await settle()
  expect(refused).toEqual(['a11', 'a10', 'a9'])
  enter('b3', { cost: 8 })
  await settle()
  expect(refused.slice(3)).toEqual(['b3'])
  enter('c1!', { cost: 10 })
  await settle()
  expect(refused.length).toBe(4)
})

test('a task that waits too long is refused, and its place is free', async () => {
  const { queue, enter, started, refused, settle, end } = aQueue({ waitingMax: 1 })
  enter('a1')
  enter('b1')
  await settle()
  vi.advanceTimersByTime(999)
  await settle()
  expect(refused).toEqual([])
  vi.advanceTimersByTime(1)
  await settle()
  expect(refused).toEqual(['b1'])
  enter('b2')
  await end('a1')
  expect(started).toEqual(['a1', 'b2'])
  vi.advanceTimersByTime(2_000)
  await end('b2')
  expect([refused, queue.isBusy]).toEqual([['b1'], false])
})

test('a turn that is ended twice gives one turn', async () => {
  const { enter, started, end } = aQueue()
  for (const name of ['a1', 'a2', 'a3']) enter(name)
  await end('a1')
  await end('a1')
  expect(started).toEqual(['a1', 'a2'])
})
