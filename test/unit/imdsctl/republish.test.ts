import { expect, test } from 'vitest'
import { republish } from '../../../src/imdsctl/republish.ts'
import type { Publisher, PutResult } from '../../../src/store/publisher.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

/** A store with one record, which another writer changes after each of the first `races` reads. */
function aStore(races: number) {
  let document: { readonly revision: number } = { ...anInstance(), revision: 1 }
  const store: Pick<Publisher, 'get' | 'put'> = {
    get: () => {
      const read = document
      if (races-- > 0) document = { ...read, revision: read.revision + 1, other: 'writer' } as typeof document
      return Promise.resolve({ document: read, order: 1, userData: undefined })
    },
    put: (put) => {
      const { revision } = put as typeof document
      if (revision <= document.revision) return Promise.resolve({ kind: 'stale', revision: document.revision })
      document = put as typeof document
      return Promise.resolve({ kind: 'published' } as PutResult)
    },
  }
  return { store, document: () => document }
}
const move = (store: Pick<Publisher, 'get' | 'put'>) =>
  republish(store, 'srv-abcde', ({ revision }) => ({ fields: { hypervisors: ['hv2'] }, result: revision + 1 }))

test('a change of another writer in between is not lost', async () => {
  const { store, document } = aStore(1)
  expect(await move(store)).toBe(3)
  expect(document()).toMatchObject({ revision: 3, other: 'writer', hypervisors: ['hv2'] })
})

test('it gives up when another writer changes the record all the time', async () => {
  await expect(move(aStore(99).store)).rejects.toThrow('another writer keeps changing srv-abcde: run this again')
})
