import { expect, test } from 'vitest'
import { COUNTERS, parsePackets } from '../../../../src/imdsd/firewall/counters.ts'
import { formatReport, parseReport, MAX_REPORT_BYTES } from '../../../../src/imdsd/firewall/agent-report.ts'

const PACKETS = parsePackets(Object.fromEntries(COUNTERS.map((name) => [name, Number.MAX_SAFE_INTEGER])))
const read = (text: string) => parseReport(JSON.parse(text))

test('a report is read back as it was written', () => {
  for (const applied of ['a.1', undefined])
    for (const failed of ['nft: no such thing', undefined])
      for (const packets of [PACKETS, undefined])
        expect(read(formatReport({ applied, failed, packets }))).toEqual({ applied, failed, packets })
})

test('a long message is cut, so that the longest report is accepted', () => {
  const text = formatReport({ applied: 'z'.repeat(49), failed: '\u0000'.repeat(1_000), packets: PACKETS })
  expect(text.length).toBeLessThan(MAX_REPORT_BYTES)
  expect(read(text)?.failed).toHaveLength(320)
})

test.each<[unknown]>([
  [undefined],
  [null],
  ['x'],
  [[]],
  [{}],
  [{ failed: 'no' }],
  [{ applied: 1 }],
  [{ applied: 'x'.repeat(321) }],
  [{ applied: null, failed: null }],
  [{ applied: null, failed: 'm'.repeat(321) }],
])('%j is not a report', (body) => expect(parseReport(body)).toBeUndefined())

test('a report of an older agent is accepted', () => {
  expect(parseReport({ applied: 'a.1', refused: [] })).toEqual({ applied: 'a.1' })
  expect(parseReport({ applied: 'a.1', packets: { admitted: -1 } })).toEqual({ applied: 'a.1' })
})
