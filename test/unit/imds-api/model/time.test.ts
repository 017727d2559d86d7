import { expect, test } from 'vitest'
import { formatOptionalTime, formatTime } from '../../../../src/imds-api/model/time.ts'

test('a time is UTC with whole seconds, from a Date and from the text of PostgreSQL', () => {
  expect(formatTime(new Date('2026-11-20T15:04:05.999Z'))).toBe('2026-11-20T15:04:05Z')
  expect(formatTime('2026-11-20T16:04:05.123456+01:00')).toBe('2026-11-20T15:04:05Z')
  expect([formatOptionalTime(null), formatOptionalTime('2026-01-01T00:00:00+00:00')]).toEqual([
    null,
    '2026-01-01T00:00:00Z',
  ])
})
