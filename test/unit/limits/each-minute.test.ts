import { expect, test } from 'vitest'
import { buildEachMinute } from '../../../src/limits/each-minute.ts'

test('a warning of a name is due at most once a minute, whatever other names there are', () => {
  let now = 0
  const isDue = buildEachMinute(() => now)
  expect([isDue('a'), isDue('a'), isDue('b')]).toEqual([true, false, true])
  now = 59_999
  expect(isDue('a')).toBe(false)
  now = 60_000
  expect([isDue('a'), isDue('a')]).toEqual([true, false])
})
