import { expect, test } from 'vitest'
import { keepTickShape } from '../../../src/runtime/ticks.ts'

test("one of Node's tick objects is kept until the process ends", async () => {
  const before = new Set(process.listeners('exit'))
  keepTickShape()
  await new Promise<void>((resolve) => {
    process.nextTick(resolve)
  })
  const [kept, ...others] = process.listeners('exit').filter((listener) => !before.has(listener))
  process.off('exit', kept!)
  expect(others).toEqual([])
  const tick = kept as unknown as () => unknown
  // a field of Node's TickObject, which executionAsyncResource() gives only inside of a tick
  expect(tick()).toHaveProperty('callback')
})
