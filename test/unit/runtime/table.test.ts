import { expect, test } from 'vitest'
import { formatTable } from '../../../src/runtime/table.ts'

const HEADER = ['ID', 'HYPERVISORS', 'ADDRESSES']
const ROWS = [
  ['srv-a', 'hv1,hv2', 'default 10.0.0.2, default 2a02:1348:178:1::2'],
  ['srv-longer', 'hv1', ''],
]

test('columns are aligned, and no line ends in spaces', () => {
  expect(formatTable(HEADER, ROWS, undefined)).toEqual([
    'ID          HYPERVISORS  ADDRESSES',
    'srv-a       hv1,hv2      default 10.0.0.2, default 2a02:1348:178:1::2',
    'srv-longer  hv1',
  ])
})

test('on a terminal the widest columns are cut until the lines fit', () => {
  const lines = formatTable(HEADER, ROWS, 40)
  expect(lines).toEqual([
    'ID          HYPERVISORS  ADDRESSES',
    'srv-a       hv1,hv2      default 10.0.0…',
    'srv-longer  hv1',
  ])
  expect(Math.max(...lines.map((line) => line.length))).toBe(40)
})

test('on a very narrow terminal columns keep a least width', () => {
  expect(formatTable(HEADER, ROWS, 5)[1]).toBe('srv-a     hv1,hv2   default…')
})

test('a cell cannot begin another line or column, nor control a terminal', () => {
  expect(formatTable(['A', 'B'], [['x\ny\tz', '\u001b[2J']], undefined)).toEqual([
    'A                B',
    'x\\u000ay\\u0009z  \\u001b[2J',
  ])
})
