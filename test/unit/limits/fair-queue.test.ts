import { setImmediate as turn } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { FairQueue, type FairQueueLimits, type Leave, type Task } from '../../../src/limits/fair-queue.ts'

beforeEach(() => vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] }))
afterEach(() => vi.useRealTimers())

type Options = Partial<Pick<Task, 'key' | 'cost' | 'isBegun'>>

/**
 * A queue whose tasks run until they are ended. `started` and `refused` name them in their order. A name that ends with
 * ! is urgent.
 */
function aQueue(limits: Partial<FairQueueLimits> = {}) {
  const queue = new FairQueue({ atOnce: 1, maxWaiting: 100, timeoutMs: 1_000, ...limits })
  const [started, refused]: [string[], string[]] = [[], []]
  const leaves = new Map<string, Leave>()
  const enter = async (name: string, { key = 'one', isBegun = false, ...options }: Options = {}) => {
    const caller = name.replace(/\d.*/, '')
    const leave = await queue.enter({ key, caller, ...options, isUrgent: name.endsWith('!'), isBegun })
    if (typeof leave !== 'function') refused.push(leave === 'all' ? `${name} by all` : name)
    else {
      started.push(name)
      leaves.set(name, leave)
    }
  }
  return {
    queue,
    started,
    refused,
    enter: (name: string, task?: Options) => void enter(name, task),
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

test('callers take turns, and urgent tasks go first, but leave every second turn to the others', async () => {
  const { enter, started, end } = aQueue()
  for (const name of ['a1', 'a2', 'a3', 'a4', 'b1', 'b2', 'c1', 'a5!', 'a6!', 'b3!']) enter(name)
  for (const name of ['a1', 'a5!', 'a2', 'b3!', 'b1', 'a6!', 'c1', 'a3', 'b2']) await end(name)
  expect(started).toEqual(['a1', 'a5!', 'a2', 'b3!', 'b1', 'a6!', 'c1', 'a3', 'b2', 'a4'])
})

test('beyond the limit the newest task of the caller whose tasks cost the most is refused', async () => {
  const { enter, refused, settle } = aQueue({ maxWaiting: 10 })
  enter('a0')
  for (let n = 1; n <= 11; n++) enter(`a${n}`)
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
  const { queue, enter, started, refused, settle, end } = aQueue({ maxWaiting: 1 })
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

test('a task that has begun is not refused, however long it waits, and takes the room of no other', async () => {
  const { enter, started, refused, settle, end } = aQueue({ maxWaiting: 2 })
  enter('a0')
  for (const name of ['a1', 'a2', 'a3']) enter(name, { isBegun: true })
  for (const name of ['a4', 'a5']) enter(name)
  enter('a6')
  for (const name of ['a7', 'a8']) enter(name, { isBegun: true })
  await settle()
  expect(refused).toEqual(['a6'])
  vi.advanceTimersByTime(100_000)
  await settle()
  expect(refused).toEqual(['a6', 'a4', 'a5'])
  for (const name of ['a0', 'a1', 'a2', 'a3', 'a7', 'a8']) await end(name)
  expect(started).toEqual(['a0', 'a1', 'a2', 'a3', 'a7', 'a8'])
})

test('a turn that is ended twice gives one turn', async () => {
  const { enter, started, end } = aQueue()
  for (const name of ['a1', 'a2', 'a3']) enter(name)
  await end('a1')
  await end('a1')
  expect(started).toEqual(['a1', 'a2'])
})

const ALL = { atOnce: 2, shared: 2, waitMs: 150, overloadMs: 200 }

test('so many tasks of all keys run at once, and keys take turns, however much of one waits', async () => {
  const { queue, enter, started, end } = aQueue({ atOnce: 2, all: ALL })
  for (const name of ['a1', 'a2', 'a3', 'a4', 'a5']) enter(name, { key: 'a' })
  for (const name of ['b1', 'b2']) enter(name, { key: 'b' })
  enter('c1', { key: 'c' })
  for (const name of ['a1', 'a2', 'b1', 'c1', 'a3', 'b2', 'a4', 'a5']) await end(name)
  expect(started).toEqual(['a1', 'a2', 'b1', 'c1', 'a3', 'b2', 'a4', 'a5'])
  expect(queue.isBusy).toBe(false)
})

test('the last turns are for keys of which nothing runs', async () => {
  const { queue, enter, started, settle, end } = aQueue({ atOnce: 2, all: { ...ALL, atOnce: 4, shared: 2 } })
  for (const name of ['a1', 'a2', 'a3']) enter(name, { key: 'a' })
  for (const name of ['b1', 'b2', 'b3']) enter(name, { key: 'b' })
  await settle()
  expect(started).toEqual(['a1', 'a2', 'b1'])
  enter('c1', { key: 'c' })
  enter('d1', { key: 'd' })
  await settle()
  expect(started.slice(3)).toEqual(['c1'])
  await end('a1')
  expect(started.slice(4)).toEqual(['d1'])
  for (const name of ['a2', 'c1']) await end(name)
  expect(started.slice(5)).toEqual(['a3'])
  for (const name of ['d1', 'a3', 'b1', 'b2', 'b3']) await end(name)
  expect(started.slice(6)).toEqual(['b2', 'b3'])
  expect(queue.isBusy).toBe(false)
})

test('if only tasks that waited long have been started for some time, they are refused, and others started', async () => {
  const { enter, started, refused, end } = aQueue({ atOnce: 1, all: { ...ALL, atOnce: 1, shared: 1 } })
  enter('b0', { key: 'b' })
  for (const name of ['a1', 'a2', 'a3', 'a4', 'a5']) enter(name, { key: 'a', isBegun: name === 'a5' })
  vi.advanceTimersByTime(151)
  await end('b0')
  vi.advanceTimersByTime(200)
  await end('a1')
  expect([started, refused]).toEqual([['b0', 'a1', 'a2'], []])
  enter('a6', { key: 'a' })
  vi.advanceTimersByTime(1)
  await end('a2')
  expect([started.slice(3), refused]).toEqual([['a5'], ['a3 by all', 'a4 by all']])
  await end('a5')
  expect([started.slice(4), refused.slice(2)]).toEqual([['a6'], []])
})

test('a key whose tasks are started soon is not refused while those of another one are', async () => {
  const { enter, started, refused, end } = aQueue({ atOnce: 1, all: { ...ALL, atOnce: 1, shared: 1 } })
  for (const name of ['a1', 'a2', 'a3', 'a4']) enter(name, { key: 'a' })
  for (const [a, b] of [
    ['a1', 'b1'],
    ['a2', 'b2'],
  ] as const) {
    vi.advanceTimersByTime(100)
    enter(b, { key: 'b' })
    await end(a)
    vi.advanceTimersByTime(101)
    await end(b)
  }
  expect(started).toEqual(['a1', 'b1', 'a2', 'b2'])
  expect(refused).toEqual(['a3 by all', 'a4 by all'])
})

test('tasks that wait long only for others of their key are not refused before the timeout', async () => {
  const { queue, enter, started, refused, end } = aQueue({ all: ALL })
  for (const name of ['a1', 'a2', 'a3', 'a4']) enter(name, { key: 'a' })
  for (const name of ['a1', 'a2']) {
    vi.advanceTimersByTime(400)
    await end(name)
  }
  expect(started).toEqual(['a1', 'a2', 'a3'])
  vi.advanceTimersByTime(200)
  await end('a3')
  expect([started.length, refused, queue.isBusy]).toEqual([3, ['a4'], false])
})

test('a key whose tasks have all been refused takes no turn', async () => {
  const { enter, started, refused, settle, end } = aQueue({ atOnce: 2, all: ALL })
  for (const name of ['a1', 'a2']) enter(name, { key: 'a' })
  enter('b1', { key: 'b' })
  vi.advanceTimersByTime(1_000)
  await settle()
  expect(refused).toEqual(['b1'])
  enter('c1', { key: 'c' })
  await end('a1')
  expect(started).toEqual(['a1', 'a2', 'c1'])
})

/**
 * A queue with one turn for all keys, which is taken. `free` gives it back, and returns the order of those that `add`
 * has added. `refused`: those that never ran.
 */
async function aBusyQueue(maxWaiting: number) {
  const queue = new FairQueue({ all: { atOnce: 1, maxWaiting } })
  const leave = (await queue.enter({ key: 'first' })) as Leave
  const [order, refused, all]: [string[], string[], Promise<unknown>[]] = [[], [], []]
  const add = (key: string, caller: string, name: string, signal = new AbortController().signal) => {
    const run = queue.run({ key, caller, signal }, () => Promise.resolve(order.push(name)))
    all.push(run.then((result) => result ?? refused.push(name)))
  }
  const free = async () => {
    leave()
    await Promise.all(all)
    expect(queue.isBusy).toBe(false)
    return order
  }
  return { queue, add, refused, free }
}

test('keys take turns, and so do the callers of a key', async () => {
  const { add, free } = await aBusyQueue(10)
  for (const name of ['1', '2', '3']) add('one', 'ada', `ada ${name}`)
  for (const name of ['1', '2']) add('one', 'grace', `grace ${name}`)
  for (const name of ['1', '2']) add('other', 'joan', `joan ${name}`)
  expect(await free()).toEqual(['ada 1', 'joan 1', 'grace 1', 'joan 2', 'ada 2', 'grace 2', 'ada 3'])
})

test('in a full queue, a task takes the place of the last task of the caller that has the most', async () => {
  const { add, refused, free } = await aBusyQueue(4)
  for (const name of ['1', '2', '3']) add('one', 'ada', `ada ${name}`)
  add('one', 'grace', 'grace 1')
  add('one', 'joan', 'joan 1')
  await turn()
  expect(refused).toEqual(['ada 3'])
  for (const [caller, name] of [
    ['ada', 'ada 4'],
    ['grace', 'grace 2'],
    ['mary', 'mary 1'],
    ['emmy', 'emmy 1'],
  ] as const)
    add('one', caller, name)
  await turn()
  expect(refused.toSorted()).toEqual(['ada 2', 'ada 3', 'ada 4', 'emmy 1', 'grace 2'])
  expect(await free()).toEqual(['ada 1', 'grace 1', 'joan 1', 'mary 1'])
})

test('a key with many callers gives places to a key that has fewer, until both have as many', async () => {
  const { add, refused, free } = await aBusyQueue(4)
  for (const name of ['1', '2', '3', '4']) add('one', name, `one ${name}`)
  for (const name of ['1', '2', '3']) add('other', 'ada', `ada ${name}`)
  await turn()
  expect(refused.toSorted()).toEqual(['ada 3', 'one 1', 'one 2'])
  expect(await free()).toEqual(['one 3', 'ada 1', 'one 4', 'ada 2'])
})

test('a queue without places for waiting tasks, and one that is full of single ones, take no more', async () => {
  for (const maxWaiting of [0, 2]) {
    const { add, refused, free } = await aBusyQueue(maxWaiting)
    for (const name of ['a', 'b', 'c']) add(name, name, name)
    await turn()
    expect(refused).toEqual(['a', 'b', 'c'].slice(maxWaiting))
    expect(await free()).toEqual(['a', 'b', 'c'].slice(0, maxWaiting))
  }
})

test('work that fails rejects its own promise, and the next one runs', async () => {
  const { queue, add, free } = await aBusyQueue(10)
  const failing = queue.run({ key: 'one' }, () => Promise.reject(new Error('no')))
  add('one', '', 'next')
  const [failed, order] = await Promise.allSettled([failing, free()])
  expect([failed.status, order]).toEqual(['rejected', { status: 'fulfilled', value: ['next'] }])
})

test('a task whose signal aborts while it waits is refused; later it has no effect', async () => {
  const { add, refused, free } = await aBusyQueue(10)
  const abort = new AbortController()
  add('a', '', 'left', abort.signal)
  add('b', '', 'alone', abort.signal)
  add('a', '', 'stays')
  abort.abort()
  await turn()
  expect(refused).toEqual(['left', 'alone'])
  expect(await free()).toEqual(['stays'])
})
