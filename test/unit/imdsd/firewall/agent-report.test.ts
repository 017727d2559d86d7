import { expect, test } from 'vitest'
import { COUNTERS, parsePackets } from '../../../../src/imdsd/firewall/counters.ts'
import {
  formatReport,
  MAX_REFUSED,
  parseReport,
  MAX_REPORT_BYTES,
} from '../../../../src/imdsd/firewall/agent-report.ts'

const PACKETS = parsePackets(Object.fromEntries(COUNTERS.map((name) => [name, Number.MAX_SAFE_INTEGER])))
const REFUSAL = { instance: 'srv-a', interface: 'int-a', message: 'm'.repeat(160) }
const read = (text: string) => parseReport(JSON.parse(text))

test('a report is read back as it was written, with as many refusals as the agent may leave out', () => {
  for (const count of [0, 1, MAX_REFUSED]) {
    const refused = Array.from({ length: count }, (_, i) => ({ ...REFUSAL, interface: `int-${i}` }))
    for (const applied of ['a.1', undefined])
      for (const packets of [PACKETS, undefined])
        expect(read(formatReport({ applied, refused, packets }))).toEqual({ applied, refused, packets })
  }
})

test('a long message is cut, so that the longest report is accepted', () => {
  const long = [{ ...REFUSAL, message: 'm'.repeat(1_000) }]
  expect(read(formatReport({ applied: 'a.1', refused: long, packets: undefined }))).toEqual({
    applied: 'a.1',
    refused: [REFUSAL],
  })
  const most = Array.from({ length: MAX_REFUSED }, () => ({
    instance: 'x'.repeat(64),
    interface: 'y'.repeat(64),
    message: '\u0000'.repeat(400),
  }))
  const text = formatReport({ applied: 'z'.repeat(49), refused: most, packets: PACKETS })
  expect(text.length).toBeLessThan(MAX_REPORT_BYTES)
  expect(read(text)?.refused).toHaveLength(MAX_REFUSED)
})

test.each<[unknown]>([
  [undefined],
  [null],
  ['x'],
  [[]],
  [{}],
  [{ applied: 'a.1' }],
  [{ refused: [] }],
  [{ applied: 1, refused: [] }],
  [{ applied: 'x'.repeat(161), refused: [] }],
  [{ applied: null, refused: [null] }],
  [{ applied: null, refused: [{ instance: 'a', interface: 'b' }] }],
  [{ applied: null, refused: [{ ...REFUSAL, message: 'm'.repeat(161) }] }],
  [{ applied: null, refused: Array.from({ length: MAX_REFUSED + 1 }, () => REFUSAL) }],
])('%j is not a report', (body) => expect(parseReport(body)).toBeUndefined())

test('a report of an older agent, without packets, is accepted', () => {
  expect(parseReport({ applied: 'a.1', refused: [] })).toEqual({ applied: 'a.1', refused: [] })
  expect(parseReport({ applied: 'a.1', refused: [], packets: { admitted: -1 } })).toEqual({
    applied: 'a.1',
    refused: [],
  })
})
