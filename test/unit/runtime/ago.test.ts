import { expect, test } from 'vitest'
import { formatAgo } from '../../../src/runtime/ago.ts'

test.each([
  [0, '0 s ago'],
  [59.9, '59 s ago'],
  [60, '1 min ago'],
  [3_599, '59 min ago'],
  [3_600, '1 h ago'],
  [86_399, '23 h ago'],
  [86_400, '1 d ago'],
  [400 * 86_400, '400 d ago'],
  [-5, '0 s ago'],
])('%d s are %s', (seconds, text) => {
  const now = Date.parse('2026-11-20T15:04:05Z')
  expect(formatAgo(new Date(now - seconds * 1000).toISOString(), now)).toBe(text)
})

test('a text that is no time was at an unknown time', () => {
  expect(formatAgo('yesterday', 0)).toBe('at an unknown time')
})
