import { expect, test } from 'vitest'
import { formatBytes, formatCount } from '../../../src/runtime/amounts.ts'

test.each([
  [0, '0.0 KiB'],
  [20 * 1024, '20 KiB'],
  [1.5 * 2 ** 30, '1.5 GiB'],
])('%d bytes are %s', (bytes, text) => expect(formatBytes(bytes)).toBe(text))

test('one instance is no plural', () => {
  expect([0, 1, 2].map((count) => formatCount(count, 'instance'))).toEqual(['0 instances', '1 instance', '2 instances'])
})
