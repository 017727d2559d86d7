/** Invariant 3 with generated records: a short run of the records and files of `npm run fuzz`. */
import { expect, test } from 'vitest'
import { fuzzFiles, fuzzRecords } from '../../fuzz/pure.ts'

const SEED = 4

test('invariant 3: a mutated record is a valid instance, or faults with places and no values', () => {
  const { good, tried, failures } = fuzzRecords(SEED, 600)
  expect(failures).toEqual([])
  expect(good).toBeGreaterThan(tried / 20)
  expect(tried - good).toBeGreaterThan(tried / 20)
})

test('invariant 3: a corrupted file never throws: it is an instance or a fault with its reason', async () => {
  const { good, tried, failures } = await fuzzFiles(SEED, 300)
  expect(failures).toEqual([])
  expect(good).toBeGreaterThan(tried / 20)
})
