import { expect, test } from 'vitest'
import { formatRows } from '../../../src/runtime/table.ts'
import { plain, type Paint } from '../../../src/runtime/terminal.ts'

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
