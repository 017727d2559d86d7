import { setImmediate as turn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { WorkQueue } from '../../../../src/api/auth/work-queue.ts'

/** Tasks that end when they are told to. */
function tasks() {
  const started: number[] = []
  const ends = new Map<number, { resolve: (value: number) => void, reject: (reason: Error) => void }>()
  return { started, ends, task: (n: number) => () => {
    started.push(n)
    return new Promise<number>((resolve, reject) => { ends.set(n, { resolve, reject }) })
  } }
}

test('so many tasks run at once, others wait in their order, and beyond that none is taken', async () => {
  const queue = new WorkQueue(2, 2)
  const { started, ends, task } = tasks()
  const results = [1, 2, 3, 4].map((n) => queue.run(task(n)))
  expect(queue.run(task(5))).toBeUndefined()
  expect(started).toEqual([1, 2])
  ends.get(2)!.resolve(20)
  expect(await results[1]).toBe(20)
  expect(started).toEqual([1, 2, 3])
  for (const n of [1, 3]) ends.get(n)!.resolve(n * 10)
  await turn()
  ends.get(4)!.resolve(40)
  const values = []
  for (const result of results) values.push(await result)
  expect(values).toEqual([10, 20, 30, 40])
  expect(started).toEqual([1, 2, 3, 4])
})

test('a task that fails rejects its own promise, and the next one runs', async () => {
  const queue = new WorkQueue(1, 1)
  const { ends, task } = tasks()
  const [first, second] = [queue.run(task(1)), queue.run(task(2))]
  ends.get(1)!.reject(new Error('no'))
  await expect(first).rejects.toThrow('no')
  await turn()
  ends.get(2)!.resolve(2)
  expect(await second).toBe(2)
})
