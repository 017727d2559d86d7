import { expect, test } from 'vitest'
import { LazyStore } from '../../../../src/imds-api/publish/lazy-store.ts'
import type { Publisher } from '../../../../src/store/publisher.ts'

/** A store that counts how often it was closed. */
function aStore() {
  const calls: string[] = []
  const store = {
    initialise: () => Promise.resolve(true),
    put: (document: unknown, userData: unknown) => Promise.resolve({ document, userData }),
    remove: (id: string, revision: number) => Promise.resolve({ id, revision }),
    close: () => Promise.resolve(void calls.push('close')),
  } as unknown as Publisher
  return { store, calls }
}

test('opens its store once, at the first use, and closes it', async () => {
  const { store, calls } = aStore()
  const lazy = new LazyStore(() => {
    calls.push('open')
    return Promise.resolve(store)
  })
  expect(calls).toEqual([])
  expect(await Promise.all([lazy.initialise(), lazy.put({ id: 'a' }, 'none'), lazy.remove('b', 7)])).toEqual([
    true,
    { document: { id: 'a' }, userData: 'none' },
    { id: 'b', revision: 7 },
  ])
  await lazy.close()
  expect(calls).toEqual(['open', 'close'])
})

test('tries again after a failure', async () => {
  const { store } = aStore()
  let failures = 1
  const lazy = new LazyStore(() => (failures-- > 0 ? Promise.reject(new Error('away')) : Promise.resolve(store)))
  await expect(lazy.open()).rejects.toThrow('away')
  expect(await lazy.initialise()).toBe(true)
})

test('a store that was never open, or could not be opened, needs no closing', async () => {
  const lazy = new LazyStore(() => Promise.reject(new Error('away')))
  await lazy.close()
  await expect(lazy.open()).rejects.toThrow('away')
  await lazy.close()
})
