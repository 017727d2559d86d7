import { expect, test } from 'vitest'
import { formatRefusals, MOST_REFUSED, parseRefusals } from '../../../src/firewall/refusal.ts'

const REFUSAL = { instance: 'srv-a', interface: 'int-a', message: 'm'.repeat(160) }

test('refusals are read back as they were written, as many as the agent may leave out', () => {
  for (const count of [0, 1, MOST_REFUSED]) {
    const refusals = Array.from({ length: count }, (_, i) => ({ ...REFUSAL, interface: `int-${String(i)}` }))
    expect(parseRefusals(formatRefusals(refusals))).toEqual(refusals)
  }
})

test('a long message is cut, so that the request of the agent stays within the limit of a URL', () => {
  expect(parseRefusals(formatRefusals([{ ...REFUSAL, message: 'm'.repeat(1_000) }]))).toEqual([REFUSAL])
  const most = Array.from({ length: MOST_REFUSED }, () => ({ instance: 'x'.repeat(64), interface: 'y'.repeat(64), message: '"^ '.repeat(400) }))
  expect(new URLSearchParams({ refused: formatRefusals(most) }).toString().length).toBeLessThan(16_384)
})

test.each([
  undefined, '', '{', 'null', '{}', '[null]', '[[1,2,3]]', '[["a","b"]]', '[["a","b","c","d"]]', JSON.stringify([['a', 'b', 'm'.repeat(161)]]),
  JSON.stringify(Array.from({ length: MOST_REFUSED + 1 }, () => ['a', 'b', 'c'])),
])('a report that no agent of this version sends gives no refusals: %s', (words) => { expect(parseRefusals(words)).toEqual([]) })
