import { setImmediate as turn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Slots } from '../../../src/limits/slots.ts'

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

/** Takes the only slot, so that what follows waits. */
function occupied() {
  const slots = new Slots(1)
  const first = Promise.withResolvers<undefined>()
  void slots.use(() => first.promise, 'srv-first')
  const free = () => {
    first.resolve(undefined)
  }
  return { slots, free }
}

test('an instance with many waiting tasks delays the task of another one by one task only', async () => {
  const { slots, free } = occupied()
  const started: string[] = []
  const use = (instance: string, task: string) =>
    slots.use(() => {
      started.push(task)
      return Promise.resolve()
    }, instance)
  const all = [use('srv-a', 'a1'), use('srv-a', 'a2'), use('srv-a', 'a3'), use('srv-b', 'b1'), use('srv-c', 'c1')]
  free()
  await Promise.all(all)
  expect(started).toEqual(['a1', 'b1', 'c1', 'a2', 'a3'])
})

test('a task that is no longer wanted leaves the queue, and never runs', async () => {
  const { slots, free } = occupied()
  const started: string[] = []
  const abort = new AbortController()
  const task = (name: string) => () => Promise.resolve(started.push(name))
  const left = slots.use(task('left'), 'srv-a', abort.signal)
  const alone = slots.use(task('alone'), 'srv-b', abort.signal)
  const stays = slots.use(task('stays'), 'srv-a')
  abort.abort()
  await expect(left).rejects.toThrow('no longer wanted')
  await expect(alone).rejects.toThrow('no longer wanted')
  free()
  await stays
  expect(started).toEqual(['stays'])
})
