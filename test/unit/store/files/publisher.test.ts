/**
 * A directory of files as a store. record-index.test.ts has what protects its records, writer.test.ts what an
 * interrupted write leaves.
 */
import { existsSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { FILE_SYSTEM } from '../../../../src/store/files/operations.ts'
import { openFilePublisher } from '../../../../src/store/files/publisher.ts'
import { anInstance, anotherInstance } from '../../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const ID = 'srv-abcde'

function aStore(operations = FILE_SYSTEM) {
  const directory = join(temporaryDirectory(), 'store')
  return { directory, store: openFilePublisher(directory, 16_384, operations, Date.now) }
}

test('the first write makes the directory, which only its owner can read', async () => {
  const { directory, store } = aStore()
  expect(existsSync(directory)).toBe(false)
  expect(await store.initialise()).toBe(false)
  expect(statSync(directory).mode & 0o777).toBe(0o700)
})

test('writes of one publisher take turns, and one that fails half-way counts with what it has written', async () => {
  let renames = 0
  const rename: typeof FILE_SYSTEM.rename = async (from, to) => {
    await FILE_SYSTEM.rename(from, to)
    if (++renames === 1) throw new Error('EIO')
  }
  const { store } = aStore({ ...FILE_SYSTEM, rename })
  const results = await Promise.allSettled([
    store.put(anInstance({ revision: 3 })),
    store.put(anInstance({ revision: 2 })),
    store.remove(ID),
    store.put(anotherInstance(1)),
  ])
  expect(results.map((result) => (result.status === 'fulfilled' ? result.value.kind : String(result.reason)))).toEqual([
    'Error: EIO',
    'stale',
    'removed',
    'published',
  ])
  await expect(store.encrypt(ID, true)).rejects.toThrow('records in files are not encrypted')
})

test('two publishers of one directory take turns by its lock', async () => {
  const { directory, store } = aStore()
  const second = openFilePublisher(directory, 16_384, FILE_SYSTEM, Date.now)
  const results = await Promise.all(
    Array.from({ length: 10 }, (_, i) =>
      (i % 2 === 0 ? store : second).put(i % 2 === 0 ? anInstance({ revision: i + 1 }) : anotherInstance(i + 1)),
    ),
  )
  expect(new Set(results.map(({ kind }) => kind))).toEqual(new Set(['published']))
  expect(readdirSync(directory).sort()).toEqual(['.publisher.lock', `${ID}.json`, 'srv-other.json'])
})

test('a list has the valid records by id, with their addresses by network, and no others', async () => {
  const { directory, store } = aStore()
  await store.put(anotherInstance(3))
  await store.put(anInstance({ revision: 2 }))
  writeFileSync(join(directory, 'srv-torn.json'), '{')
  expect(await store.list()).toEqual([
    { id: ID, revision: 2, hypervisors: ['hv1'], addresses: ['default 10.0.0.2'] },
    { id: 'srv-other', revision: 3, hypervisors: ['hv1'], addresses: ['default 10.0.0.6'] },
  ])
})

test('with files no daemon announces itself: none is listed, and no put reports a misspelt name', async () => {
  const { store } = aStore()
  await expect(store.hypervisors()).rejects.toThrow('daemons announce themselves only in Redis')
  expect(await store.put(anInstance({ hypervisors: ['hv-typo'] }))).toMatchObject({ unannounced: [] })
})

test('a close waits for the writes in flight', async () => {
  const { directory, store } = aStore()
  void store.put(anInstance())
  await store.close()
  expect(existsSync(join(directory, `${ID}.json`))).toBe(true)
})

test('an id with a path in it neither reads nor deletes a file outside the directory', async () => {
  const { directory, store } = aStore()
  await store.put(anInstance())
  const victim = join(directory, '..', 'victim.json')
  writeFileSync(victim, JSON.stringify(anInstance({ id: 'victim' })))
  for (const work of [
    store.remove('../victim'),
    store.remove('../victim', 5),
    store.get('../victim'),
    store.seal('../victim'),
  ])
    await expect(work).rejects.toThrow('must be an id: 1 to 64')
  expect(await store.put(anInstance({ id: '../victim' }))).toMatchObject({ kind: 'invalid' })
  expect(readdirSync(join(directory, '..')).sort()).toEqual(['store', 'victim.json'])
})

test('writes that wait share the lock, 100 at most, and what one changes counts for the next', async () => {
  const { directory, store } = aStore()
  let locks = 0
  const watched = openFilePublisher(directory, 16_384, FILE_SYSTEM, () => {
    locks += 1 // each reading of the index asks for the time
    return Date.now()
  })
  await store.put(anInstance())
  const address = (i: number) => `10.1.${i}.2/30`
  const results = await Promise.all(
    Array.from({ length: 150 }, (_, i) => watched.put(anotherInstance(i + 1, address(i % 2)))),
  )
  expect(new Set(results.map(({ kind }) => kind))).toEqual(new Set(['published']))
  expect(locks).toBe(2)
  expect(
    await watched.put(anInstance({ revision: 2, interfaces: anotherInstance(1, address(1))['interfaces'] })),
  ).toMatchObject({ kind: 'address-owned', owner: 'srv-other' })
})

test('writers of two processes take turns: one that writes again and again does not keep the other waiting', async () => {
  const { directory, store } = aStore()
  const busy = openFilePublisher(directory, 16_384, FILE_SYSTEM, Date.now)
  const stopping = new AbortController()
  let puts = 0
  const writing = (async () => {
    while (!stopping.signal.aborted) await busy.put(anInstance({ revision: ++puts }))
  })()
  await vi.waitFor(() => expect(puts).toBeGreaterThan(2), { timeout: 10_000 })
  for (let revision = 1; revision <= 10; revision++)
    expect(await store.put(anotherInstance(revision))).toMatchObject({ kind: 'published' })
  stopping.abort()
  await writing
})
