/**
 * Random snapshot files: a short run of what `npm run fuzz` does with them.
 */
import { expect, test } from 'vitest'
import { fuzzSnapshots } from '../../../fuzz/pure.ts'

test('a corrupted snapshot is rejected with one clear line, or served exactly as written', async () => {
  const { good, tried, failures } = await fuzzSnapshots(4, 400)
  expect(failures).toEqual([])
  expect(good).toBeGreaterThan(tried / 20)
})
