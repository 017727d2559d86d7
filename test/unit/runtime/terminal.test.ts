import { expect, test } from 'vitest'
import {
  paintFor,
  widthOf,
  formatRows,
  plain,
  escapeControls,
  escapeJsonLine,
  type Paint,
} from '../../../src/runtime/terminal.ts'

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

/** Shows styles as tags. */
const tagged: Paint = (style, text) => `<${style}>${text}</>`

test('columns are aligned, and no line ends in spaces', () => {
  const rows = [
    ['srv-a', 'hv1,hv2', 'default 10.0.0.2, default 2a02:1348:178:1::2'],
    ['srv-longer', 'hv1', ''],
  ]
  expect(formatRows(rows, undefined, plain)).toEqual([
    'srv-a       hv1,hv2  default 10.0.0.2, default 2a02:1348:178:1::2',
    'srv-longer  hv1',
  ])
})

const FOUND = [
  [{ text: 'ok', style: 'green' as const }, 'daemon', 'it is ready'],
  [{ text: 'failure', style: 'red' as const }, 'addresses', 'no interface has 169.254.169.254. Remedy: restart it'],
]

test('rows are one line each, or are wrapped at words into the width below their last column', () => {
  expect(formatRows(FOUND, undefined, plain)).toEqual([
    'ok       daemon     it is ready',
    'failure  addresses  no interface has 169.254.169.254. Remedy: restart it',
  ])
  const lines = formatRows(FOUND, 50, tagged)
  expect(lines).toEqual([
    '<green>ok</>       daemon     it is ready',
    '<red>failure</>  addresses  no interface has',
    '                    169.254.169.254. Remedy:',
    '                    restart it',
  ])
  expect(formatRows([['a', 'https://example.com/a-word-that-is-longer-than-the-width']], 30, plain)).toHaveLength(1)
  expect(formatRows([], 30, plain)).toEqual([])
})

test('on a very narrow terminal the last column of rows keeps a least width', () => {
  expect(formatRows(FOUND, 1, plain)[1]).toBe('failure  addresses  no interface has')
})

test('a cell of rows cannot begin another line, nor control a terminal', () => {
  expect(formatRows([['a', 'x\ny \u001b[2J']], 80, plain)).toEqual(['a  x\\u000ay \\u001b[2J'])
})

const HOSTILE = 'a\u001b[2Jb\u009b31m\u007f\r\n\tc\u2028d\u202ee\u2066'

test('control characters are escaped as in JSON: in lines all but tab and newline, in columns all', () => {
  expect(escapeControls(HOSTILE)).toBe('a\\u001b[2Jb\\u009b31m\\u007f\\u000d\\u000a\\u0009c\\u2028d\\u202ee\\u2066')
  expect(escapeControls('a\u001b\n\tb', true)).toBe('a\\u001b\n\tb')
})

test('a line of JSON keeps its meaning', () => {
  for (const value of [{ HOSTILE }, { [HOSTILE]: ['é ü 漢 😀'] }]) {
    expect(JSON.parse(escapeControls(JSON.stringify(value)))).toEqual(value)
    expect(JSON.parse(escapeJsonLine(`${JSON.stringify(value)}\n`))).toEqual(value)
    expect(escapeJsonLine(`${JSON.stringify(value)}\n`)).toMatch(
      // eslint-disable-next-line no-control-regex
      /^[^\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]+\n$/,
    )
  }
})
