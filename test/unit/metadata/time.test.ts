import { expect, test } from 'vitest'
import { isTime } from '../../../src/metadata/time.ts'

test.each([
  '2026-11-20T15:04:05Z',
  '2026-11-20T16:04:05.25+01:00',
  '2024-02-29T00:00:00Z',
  '2000-02-29T00:00:00Z',
  '2026-12-31T23:59:59-23:59',
  '1970-01-01T00:00:00Z',
  '9999-12-31T23:59:59.9999999Z',
])('%s is a time', (text) => expect(isTime(text)).toBe(true))

test.each([
  '',
  'soon',
  '2026-11-20',
  '2026-11-20T15:04:05',
  '2026-11-20 15:04:05Z',
  '2026-11-20T24:00:00Z',
  '2026-13-01T00:00:00Z',
  '2026-11-20T15:04:05Z ',
  `2026-11-20T15:04:05.${'0'.repeat(20)}Z`,
])('%s is not a time of RFC 3339', (text) => expect(isTime(text)).toBe(false))

test('the days of each month are those of the calendar, also in leap years', () => {
  const wrong = []
  for (let year = 1970; year < 2410; year++)
    for (let month = 1; month <= 12; month++)
      for (let day = 28; day <= 32; day++) {
        const text = `${year}-${String(month).padStart(2, '0')}-${day}T00:00:00Z`
        if (isTime(text) !== new Date(Date.UTC(year, month - 1, day)).toISOString().startsWith(text.slice(0, 10)))
          wrong.push(text)
      }
  expect(wrong).toEqual([])
})

test.each(['1969-12-31T23:59:59Z', '0000-01-01T00:00:00Z', '9999-12-31T23:59:59-23:59'])(
  '%s is outside the years 1970 to 9999 of UTC',
  (text) => expect(isTime(text)).toBe(false),
)
