import { expect, test } from 'vitest'
import { paintFor, widthOf } from '../../../src/runtime/terminal.ts'

const hasColors = (has: boolean) => ({ hasColors: () => has })

test('only a terminal has a width', () => {
  expect(widthOf({ isTTY: true, columns: 80 })).toBe(80)
  expect(widthOf({ isTTY: true, columns: 0 })).toBeUndefined()
  expect(widthOf({ isTTY: true })).toBeUndefined()
  expect(widthOf({ columns: 80 })).toBeUndefined()
})

test('texts have a style only for a terminal with colours', () => {
  expect(paintFor({ isTTY: true, ...hasColors(true) })('red', 'x')).toBe('\u001b[31mx\u001b[39m')
  expect(paintFor({ isTTY: true, ...hasColors(false) })('red', 'x')).toBe('x')
  expect(paintFor({ isTTY: true })('red', 'x')).toBe('x')
  expect(paintFor(hasColors(true))('red', 'x')).toBe('x')
})
