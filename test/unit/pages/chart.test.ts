import { expect, test } from 'vitest'
import { formatChart } from '../../../src/pages/chart.ts'

const chart = (values: readonly (number | undefined)[]) =>
  formatChart({
    title: 'Requests per second',
    times: values.map((_value, i) => i / 4),
    lines: [{ name: 'all', values }],
    format: (value) => `${value}/s`,
    from: 'an hour ago',
    to: 'now',
  }).toString()

test('the highest value is at the upper edge, and zero at the lower one', () => {
  expect(chart([0, 5, 10])).toContain('points="0.0,100.0 150.0,50.0 300.0,0.0"')
  expect(chart([0, 0])).toContain('points="0.0,100.0 150.0,100.0"')
})

test('a line has a gap where there was no value', () => {
  expect([...chart([1, undefined, 1, 1]).matchAll(/points="([^"]*)"/g)].map(([, points]) => points)).toEqual([
    '0.0,0.0',
    '300.0,0.0 450.0,0.0',
  ])
})

test('the legend has the last and the highest value', () => {
  expect(chart([3, 7, 2])).toMatch(/all 2\/s<\/span><.*highest: 7\/s/s)
  expect(chart([undefined])).toMatch(/all –<\/span><.*highest: 0\/s/s)
})
