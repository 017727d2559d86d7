import { expect, test } from 'vitest'
import { formatProgress } from '../../../src/runtime/progress.ts'

test.each([
  [{ done: 0, total: 10, seconds: 1 }, '[....................] 0 %, 0 of 10 records'],
  [{ done: 450, total: 1000, seconds: 2 }, '[#########...........] 45 %, 450 of 1000 records, 225 a second, 3 s left'],
  [{ done: 10, total: 10, seconds: 2 }, '[####################] 100 %, 10 of 10 records, 5 a second, 0 s left'],
  [{ done: 11, total: 10, seconds: 1 }, '[####################] 100 %, 11 of 10 records, 11 a second, 0 s left'],
  [{ done: 30, total: undefined, seconds: 2 }, '30 records, 15 a second'],
  [{ done: 0, total: undefined, seconds: 2 }, '0 records'],
])('%o is shown as %s', (state, line) => {
  expect(formatProgress(state, 'records')).toBe(line)
})
