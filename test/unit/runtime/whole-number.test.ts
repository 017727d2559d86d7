import { expect, test } from 'vitest'
import { parseWhole } from '../../../src/runtime/whole-number.ts'

test('a whole number is decimal digits within its limits', () => {
  expect(['60', '61', '120'].map((text) => parseWhole(text, 60, 120))).toEqual([60, 61, 120])
  expect(parseWhole('0', 0, 1)).toBe(0)
  expect(['59', '121', '9'.repeat(400)].map((text) => parseWhole(text, 60, 120))).toEqual([
    undefined,
    undefined,
    undefined,
  ])
})

test.each([
  '',
  ' ',
  '0x50',
  '0b1010000',
  '0o120',
  '8e1',
  '80.0',
  '80.',
  '+80',
  '-80',
  '080',
  '8_0',
  '80 ',
  '80s',
  '８０',
  'Infinity',
  'NaN',
])('%j is no whole number', (text) => expect(parseWhole(text, 0, 1000)).toBeUndefined())
