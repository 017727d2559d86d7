import { expect, test } from 'vitest'
import {
  formatBehind,
  isAhead,
  MAX_AHEAD_MS,
  parseBehind,
  placeOf,
  placeOfTombstone,
  withoutOrder,
} from '../../../src/store/order.ts'

test.each([
  [5, 5],
  ['1790000000000001', 1790000000000001],
  ['', 0],
  ['-1', 0],
  ['1e3', 0],
  [1.5, 0],
  [2 ** 60, 0],
  [null, 0],
  [[5], 0],
])('the place in %j is %j', (value, place) => expect(placeOf(value)).toBe(place))

test.each([
  ['3 99', 99],
  ['3 99 2026-11-20T15:04:05Z', 99],
  ['3', 0],
  ['3 2026-11-20T15:04:05Z', 0],
])('the place of the tombstone %j is %j', (text, place) => expect(placeOfTombstone(text)).toBe(place))

test('a record is split into its document and its place', () => {
  expect(withoutOrder({ id: 'a', order: 5 })).toEqual({ document: { id: 'a' }, order: 5 })
  expect(withoutOrder({ id: 'a' })).toEqual({ document: { id: 'a' }, order: 0 })
  expect([withoutOrder(null), withoutOrder([1])]).toEqual([
    { document: null, order: 0 },
    { document: [1], order: 0 },
  ])
})

test('a place of more than a day in the future is that of a wrong clock', () => {
  expect([0, 1].map((more) => isAhead((1_000 + MAX_AHEAD_MS) * 1_000 + more, 1_000))).toEqual([false, true])
})

test('the mark that a region has lost changes names the place, and who knows it', () => {
  expect(parseBehind(formatBehind(5, 'hv1'))).toEqual({ order: 5, by: 'hv1', text: '5 hv1' })
  expect(parseBehind(formatBehind(5))).toEqual({ order: 5, text: '5' })
  expect(parseBehind('x \0\u001b[2J')).toEqual({ order: 0, text: 'x \u001b[2J' })
})
