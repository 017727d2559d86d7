import { expect, test } from 'vitest'
import { publishMany, type SettledPut, type ToPublish } from '../../../src/store/publish-many.ts'
import { StoreUnavailable, type Publisher, type PutResult } from '../../../src/store/publisher.ts'

const record = (id: string, n = 1): ToPublish => ({ id, document: `${id} ${n}`, userData: 'keep' })
const OWNED: PutResult = { kind: 'address-owned', network: 'default', address: '10.0.0.2', owner: 'srv-z' }
const STALE: PutResult = { kind: 'stale', revision: 1 }
const turn = () => new Promise((resolve) => setImmediate(resolve))

/** A publisher whose puts wait until the test answers them, by document. */
function publishing(records: readonly ToPublish[], atOnce = 10) {
  const waiting = new Map<string, PromiseWithResolvers<PutResult>>()
  const started: string[] = []
  const settled: [string, SettledPut['kind']][] = []
  const put = (document: unknown) => {
    const answer = Promise.withResolvers<PutResult>()
    started.push(String(document))
    waiting.set(String(document), answer)
    return answer.promise
  }
  const iterator = (async function* () {
    yield* await Promise.resolve(records)
  })()
  const ended = publishMany({ put } as unknown as Publisher, iterator, atOnce, {}, ({ document }, { kind }) => {
    settled.push([String(document), kind])
  })
  const answer = async (document: string, result: PutResult | Error = STALE) => {
    await turn()
    if (result instanceof Error) waiting.get(document)!.reject(result)
    else waiting.get(document)!.resolve(result)
    await turn()
  }
  return { started, settled, ended, answer }
}

test('records of different instances are published at once, up to the limit, and each is reported once', async () => {
  const { started, settled, ended, answer } = publishing(
    ['a', 'b', 'c', 'd'].map((id) => record(id)),
    3,
  )
  await turn()
  expect(started).toEqual(['a 1', 'b 1', 'c 1'])
  await answer('b 1')
  expect(started).toEqual(['a 1', 'b 1', 'c 1', 'd 1'])
  for (const id of ['d', 'c', 'a']) await answer(`${id} 1`)
  expect([await ended, settled.map(([document]) => document)]).toEqual(['done', ['b 1', 'd 1', 'c 1', 'a 1']])
})

test('two records of one instance are published in their order, never at once', async () => {
  const { started, settled, ended, answer } = publishing(
    [record('a', 1), record('b'), record('a', 2), record('a', 3)],
    3,
  )
  await turn()
  expect(started).toEqual(['a 1', 'b 1'])
  await answer('a 1')
  expect(started).toEqual(['a 1', 'b 1', 'a 2'])
  await answer('a 2')
  await answer('a 3')
  await answer('b 1')
  await ended
  expect(settled.map(([document]) => document)).toEqual(['a 1', 'a 2', 'a 3', 'b 1'])
})

test('an address that an earlier record of the run may give up is tried again after it, and once only', async () => {
  const { started, settled, ended, answer } = publishing([record('a'), record('b'), record('c')])
  await answer('b 1', OWNED)
  expect(started).toEqual(['a 1', 'b 1', 'c 1'])
  await answer('a 1')
  expect(started).toEqual(['a 1', 'b 1', 'c 1', 'b 1'])
  await answer('b 1', OWNED)
  await answer('c 1')
  await ended
  expect(settled).toEqual([
    ['a 1', 'stale'],
    ['b 1', 'address-owned'],
    ['c 1', 'stale'],
  ])
})

test('a record that fails is reported, and those after it are published', async () => {
  const { settled, ended, answer } = publishing([record('a'), record('a', 2)])
  await answer('a 1', new Error('a bug'))
  await answer('a 2')
  expect([await ended, settled]).toEqual([
    'done',
    [
      ['a 1', 'failed'],
      ['a 2', 'stale'],
    ],
  ])
})

test('a store that cannot be used ends the run; what is in flight is reported, and no more is tried', async () => {
  const { started, settled, ended, answer } = publishing(
    ['a', 'b', 'c'].map((id) => record(id)),
    2,
  )
  let isOver = false
  void ended.then(() => {
    isOver = true
  })
  await answer('a 1', new StoreUnavailable('away'))
  expect(isOver, 'b is in flight').toBe(false)
  await answer('b 1')
  expect([await ended, started, settled]).toEqual([
    'unavailable',
    ['a 1', 'b 1'],
    [
      ['a 1', 'failed'],
      ['b 1', 'stale'],
    ],
  ])
})

test('a store that cannot be used ends the run even while it waits for the next record', async () => {
  const { promise: never } = Promise.withResolvers<IteratorResult<ToPublish>>()
  const all = [Promise.resolve({ done: false as const, value: record('a') }), never]
  const publisher = { put: () => Promise.reject(new StoreUnavailable('away')) } as unknown as Publisher
  expect(await publishMany(publisher, { next: () => all.shift()! }, 10, {}, () => undefined)).toEqual('unavailable')
})
