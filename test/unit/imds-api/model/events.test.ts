import { expect, test } from 'vitest'
import { formatCursor, parseCursor } from '../../../../src/imds-api/model/events.ts'

test('a cursor is parsed to what it was made of, and any other text is refused', () => {
  for (const cursor of [
    { epoch: '0f3a9c21', number: 0 },
    { epoch: 'ffffffff', number: 999_999_999_999_999 },
  ])
    expect(parseCursor(formatCursor(cursor))).toEqual(cursor)
  for (const text of [
    '',
    'now',
    '0f3a9c21',
    '0f3a9c21-',
    '0f3a9c21-01',
    '0f3a9c21-1\n',
    '0F3A9C21-1',
    '0f3a9c2-1',
    `0f3a9c21-${'9'.repeat(16)}`,
  ])
    expect(parseCursor(text)).toBeUndefined()
})
