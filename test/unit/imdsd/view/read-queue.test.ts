import { expect, test } from 'vitest'
import { ReadQueue } from '../../../../src/imdsd/view/read-queue.ts'

const ignore = (promise: Promise<void>) => promise.catch(() => undefined)

test('a batch takes ids of lookups, notices and the resync in turn, each id once with its strongest reason', () => {
  const queue = new ReadQueue()
  queue.beginResync()
  for (const n of [1, 2, 3]) {
    ignore(queue.addLookUp(`peer-${n}`))
    queue.addNoticed(`notice-${n}`)
    queue.addIndexed(`index-${n}`)
  }
  queue.addNoticed('index-1')
  expect([...queue.take(6).origins]).toEqual([
    ['peer-1', 'peer'],
    ['notice-1', 'notice'],
    ['index-1', 'index'],
    ['peer-2', 'peer'],
    ['notice-2', 'notice'],
    ['index-2', 'index'],
  ])
  expect([...queue.take(6).origins.keys()]).toEqual(['peer-3', 'notice-3', 'index-3'])
})

test('what could not be read is queued again, and its lookups are rejected', async () => {
  const queue = new ReadQueue()
  queue.beginResync()
  queue.addIndexed('index-1')
  queue.addNoticed('notice-1')
  const lookUp = queue.addLookUp('peer-1')
  const batch = queue.take(10)
  queue.addNoticed('notice-2')
  const { origins, waiting } = queue.take(10)
  batch.origins.delete('notice-1') // it was read
  queue.putBack(batch, new Error('the store was lost'))
  await expect(lookUp).rejects.toThrow('the store was lost')
  queue.putBack({ origins, waiting }, new Error('the store was lost'))
  expect([...queue.take(10).origins]).toEqual([
    ['notice-2', 'notice'],
    ['index-1', 'index'],
  ])
})

test('a resync is read once everything that it queued has been taken; the queue is empty once it has ended', () => {
  const queue = new ReadQueue()
  expect([queue.isEmpty, queue.isResyncing, queue.isResyncRead]).toEqual([true, false, false])
  queue.beginResync()
  queue.addIndexed('index-1')
  expect([queue.isEmpty, queue.isResyncing, queue.isResyncRead]).toEqual([false, true, false])
  queue.take(1)
  expect([queue.isEmpty, queue.isResyncRead]).toEqual([false, true])
  queue.endResync()
  expect([queue.isEmpty, queue.isResyncing]).toEqual([true, false])
})

test('what could not be read of a resync that has ended is not queued again', () => {
  const queue = new ReadQueue()
  queue.beginResync()
  queue.addIndexed('index-1')
  const batch = queue.take(1)
  queue.endResync()
  queue.putBack(batch, new Error('the store was lost'))
  expect(queue.isEmpty).toBe(true)
})
