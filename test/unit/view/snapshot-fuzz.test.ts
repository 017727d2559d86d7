/**
 * Snapshot files without end: a short run of what `npm run fuzz` does with them.
 */
import { expect, test } from 'vitest'
import { fuzzSnapshots } from '../../fuzz/pure.ts'

test('a spoiled snapshot is rejected with one clear line, and served only where it says exactly what was written', async () => {
  const { good, tried, failures } = await fuzzSnapshots(4, 400)
  expect(failures).toEqual([])
  expect(good).toBeGreaterThan(tried / 20)
})
