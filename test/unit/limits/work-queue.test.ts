import { setImmediate as turn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { WorkQueue } from '../../../src/limits/work-queue.ts'

/** Tasks that end when they are told to. */
function tasks() {
  const started: number[] = []
  const ends = new Map<number, { resolve: (value: number) => void; reject: (reason: Error) => void }>()
  return {
    started,
    ends,
    task: (n: number) => () => {
      started.push(n)
      return new Promise<number>((resolve, reject) => {
        ends.set(n, { resolve, reject })
      })
    },
  }
}

test('so many tasks run at once, those of one subject wait in their order, and beyond that none is taken', async () => {
  const queue = new WorkQueue(2, 2)
  const { started, ends, task } = tasks()
  const results = [1, 2, 3, 4].map((n) => queue.run('a', 'b', task(n)))
  expect(await queue.run('a', 'b', task(5))).toBeUndefined()
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
  const [first, second] = [queue.run('a', 'b', task(1)), queue.run('a', 'b', task(2))]
  ends.get(1)!.reject(new Error('no'))
  await expect(first).rejects.toThrow('no')
  await turn()
  ends.get(2)!.resolve(2)
  expect(await second).toBe(2)
})

/**
 * A queue in which a task runs until `end`, which returns the order of those that `add` has added. `refused`: those
 * that were dropped, or not taken.
 */
function aBusyQueue(waiting: number) {
  const queue = new WorkQueue(1, waiting)
  const order: string[] = []
  const refused: string[] = []
  let end = () => {
    /* set below */
  }
  const running = queue.run(
    'first',
    'first',
    () =>
      new Promise<void>((resolve) => {
        end = resolve
      }),
  )
  const all: Promise<unknown>[] = [running]
  const add = (owner: string, subject: string, name: string) => {
    all.push(
      queue
        .run(owner, subject, () => Promise.resolve(order.push(name)))
        .then((result) => {
          if (result === undefined) refused.push(name)
        }),
    )
  }
  return {
    add,
    refused,
    end: async () => {
      end()
      await Promise.all(all)
      return order
    },
  }
}

test('owners take turns, and so do the subjects of an owner', async () => {
  const { add, end } = aBusyQueue(10)
  for (const name of ['1', '2', '3']) add('one', 'ada', `ada ${name}`)
  for (const name of ['1', '2']) add('one', 'grace', `grace ${name}`)
  for (const name of ['1', '2']) add('other', 'joan', `joan ${name}`)
  expect(await end()).toEqual(['ada 1', 'joan 1', 'grace 1', 'joan 2', 'ada 2', 'grace 2', 'ada 3'])
})

test('in a full queue, a task takes the place of the last task of the subject that has the most', async () => {
  const { add, refused, end } = aBusyQueue(4)
  for (const name of ['1', '2', '3']) add('one', 'ada', `ada ${name}`)
  add('one', 'grace', 'grace 1')
  add('one', 'joan', 'joan 1')
  await turn()
  expect(refused).toEqual(['ada 3'])
  for (const [subject, name] of [
    ['ada', 'ada 4'],
    ['grace', 'grace 2'],
    ['mary', 'mary 1'],
    ['emmy', 'emmy 1'],
  ] as const)
    add('one', subject, name)
  await turn()
  expect(refused.toSorted()).toEqual(['ada 2', 'ada 3', 'ada 4', 'emmy 1', 'grace 2'])
  expect(await end()).toEqual(['ada 1', 'grace 1', 'joan 1', 'mary 1'])
})

test('an owner with many subjects gives places to an owner who has fewer, until both have as many', async () => {
  const { add, refused, end } = aBusyQueue(4)
  for (const name of ['1', '2', '3', '4']) add('one', name, `one ${name}`)
  for (const name of ['1', '2', '3']) add('other', 'ada', `ada ${name}`)
  await turn()
  expect(refused.toSorted()).toEqual(['ada 3', 'one 1', 'one 2'])
  expect(await end()).toEqual(['one 3', 'ada 1', 'one 4', 'ada 2'])
})

test('a queue without places for waiting tasks, and one that is full of single ones, take no more', async () => {
  for (const waiting of [0, 2]) {
    const { add, refused, end } = aBusyQueue(waiting)
    for (const name of ['a', 'b', 'c']) add(name, name, name)
    await turn()
    expect(refused).toEqual(['a', 'b', 'c'].slice(waiting))
    expect(await end()).toEqual(['a', 'b', 'c'].slice(0, waiting))
  }
})
