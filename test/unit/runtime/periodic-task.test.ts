import { expect, test, vi } from 'vitest'
import { PeriodicTask } from '../../../src/runtime/periodic-task.ts'

test('a run that fails is reported, and the next one follows', async () => {
  const errors: string[] = []
  let runs = 0
  const task = new PeriodicTask(
    () => (++runs === 1 ? Promise.reject(new Error('refused')) : Promise.resolve()),
    0,
    ({ message }) => errors.push(message),
  )
  task.start()
  await vi.waitUntil(() => runs >= 3)
  await task.stop()
  expect(errors).toEqual(['refused'])
})

test('a stop aborts the present run and waits for it, and no other run follows', async () => {
  const ended: boolean[] = []
  const task = new PeriodicTask(
    async (signal) => {
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
      ended.push(signal.aborted)
    },
    0,
    () => expect.unreachable(),
  )
  task.start()
  await task.stop()
  expect(ended).toEqual([true])
})

test('a stop ends the pause, and may come without a start', async () => {
  const build = () =>
    new PeriodicTask(
      () => Promise.resolve(),
      3_600_000,
      () => expect.unreachable(),
    )
  await build().stop()
  const started = build()
  started.start()
  await started.stop()
})
