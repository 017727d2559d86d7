import { expect, test } from 'vitest'
import { formatRows, formatTable } from '../../../src/runtime/table.ts'
import { plain, type Paint } from '../../../src/runtime/terminal.ts'

/** Shows styles as tags. */
const tagged: Paint = (style, text) => `<${style}>${text}</>`

const HEADER = ['ID', 'HYPERVISORS', 'ADDRESSES']
const ROWS = [
  ['srv-a', 'hv1,hv2', 'default 10.0.0.2, default 2a02:1348:178:1::2'],
  ['srv-longer', 'hv1', ''],
]

test('columns are aligned, and no line ends in spaces', () => {
  expect(formatTable(HEADER, ROWS, undefined, plain)).toEqual([
    'ID          HYPERVISORS  ADDRESSES',
    'srv-a       hv1,hv2      default 10.0.0.2, default 2a02:1348:178:1::2',
    'srv-longer  hv1',
  ])
})

test('on a terminal the widest columns are cut until the lines fit', () => {
  const lines = formatTable(HEADER, ROWS, 40, plain)
  expect(lines).toEqual([
    'ID          HYPERVISORS  ADDRESSES',
    'srv-a       hv1,hv2      default 10.0.0…',
    'srv-longer  hv1',
  ])
  expect(Math.max(...lines.map((line) => line.length))).toBe(40)
})

test('on a very narrow terminal columns keep a least width', () => {
  expect(formatTable(HEADER, ROWS, 5, plain)[1]).toBe('srv-a     hv1,hv2   default…')
})

test('a cell cannot begin another line or column, nor control a terminal', () => {
  expect(formatTable(['A', 'B'], [['x\ny\tz', '\u001b[2J']], undefined, plain)).toEqual([
    'A                B',
    'x\\u000ay\\u0009z  \\u001b[2J',
  ])
})

test('styles change neither the alignment nor the width, and the header is bold', () => {
  const rows = [
    ['srv-a', { text: 'sealed', style: 'yellow' as const }, 'x'],
    ['srv-longer', '', { text: 'a long text that is cut', style: 'red' as const }],
  ]
  expect(formatTable(['ID', 'STATE', 'WHY'], rows, 30, tagged)).toEqual([
    '<bold>ID          STATE   WHY</>',
    'srv-a       <yellow>sealed</>  x',
    'srv-longer          <red>a long te…</>',
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
