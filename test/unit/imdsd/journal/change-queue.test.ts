import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { buildChangeQueue } from '../../../../src/imdsd/journal/change-queue.ts'
import { encodeChange } from '../../../../src/imdsd/journal/encoding.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'

// a turn has a budget of time too, which a busy machine would use up
beforeEach(() => vi.useFakeTimers({ toFake: ['performance'] }))
afterEach(() => vi.useRealTimers())

/** What a change with user-data is encoded as. */
const change = (bytes = 0) =>
  encodeChange({
    kind: 'replace',
    record: { instance: parsed(generateRecord(1)), digest: '', order: 1, lost: [], userData: Buffer.alloc(bytes) },
  })
const PARTS = change().length
const turns = async (count: number) => {
  for (let n = 0; n < count; n++) await new Promise((resolve) => setImmediate(resolve))
}

/** A queue whose writes wait for the test. */
function aQueue() {
  const writes: { changes: number; end: () => void }[] = []
  const queue = buildChangeQueue((changes) => {
    const { promise, resolve } = Promise.withResolvers<undefined>()
    writes.push({
      changes: changes.length / PARTS,
      end: () => resolve(undefined),
    })
    return promise
  })
  return { queue, writes }
}

test('a change is made after it was written, and those that came meanwhile are the next group, in order', async () => {
  const { queue, writes } = aQueue()
  const made: number[] = []
  for (const n of [1, 2]) void queue.add(change(), () => made.push(n))
  await turns(3)
  for (const n of [3, 4]) void queue.add(change(), () => made.push(n))
  await turns(3)
  expect([writes.map(({ changes }) => changes), made]).toEqual([[2], []])
  writes[0]!.end()
  await turns(3)
  expect([writes.map(({ changes }) => changes), made]).toEqual([
    [2, 2],
    [1, 2],
  ])
  writes[1]!.end()
  await queue.allApplied()
  expect(made).toEqual([1, 2, 3, 4])
})

test('whoever adds more than a group waits until there is room; a long change is a group of one', async () => {
  const { queue, writes } = aQueue()
  let added = 0
  const adding = (async () => {
    for (; added < 6; added++) await queue.add(change(400_000), () => undefined)
    await queue.add(change(3_000_000), () => undefined)
  })()
  await turns(5)
  expect([added, writes.map(({ changes }) => changes)]).toEqual([4, [2]])
  for (let n = 0; n < 10; n++) {
    writes[n]?.end()
    await turns(5)
  }
  await adding
  await queue.allApplied()
  expect(writes.at(-1)!.changes).toBe(1)
  expect(Math.max(...writes.map(({ changes }) => changes))).toBe(2)
})

test('a wake without changes is a write of none, when all changes before it are made', async () => {
  const { queue, writes } = aQueue()
  let isMade = false
  void queue.add(change(), () => {
    isMade = true
  })
  await turns(3)
  queue.wake()
  await turns(3)
  expect(writes).toHaveLength(1)
  writes[0]!.end()
  await turns(3)
  expect([isMade, writes[1]!.changes]).toEqual([true, 0])
  writes[1]!.end()
  await queue.allApplied()
})

test('a group is bounded by its encoded bytes, JSON included', async () => {
  const { queue, writes } = aQueue()
  const instance = { ...parsed(generateRecord(1)), tags: { note: 'x'.repeat(250_000) } }
  const record = { instance, digest: '', order: 1, lost: [], userData: undefined }
  const large = encodeChange({ kind: 'replace', record })
  const adding = Promise.all(Array.from({ length: 20 }, () => queue.add(large, () => undefined)))
  for (let n = 0; n < 20; n++) {
    await turns(5)
    writes[n]?.end()
  }
  await adding
  expect(Math.max(...writes.map(({ changes }) => changes))).toBe(4)
})
