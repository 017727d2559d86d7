import { expect, test } from 'vitest'
import { COUNTERS, packetsByName, parsePackets, type Packets } from '../../../../src/imdsd/firewall/counters.ts'

const PACKETS = Object.fromEntries(COUNTERS.map((name, i) => [name, i])) as Packets

test('packets are read if every counter is a count; counters that are not known are ignored', () => {
  expect(parsePackets(PACKETS)).toEqual(PACKETS)
  expect(parsePackets({ ...PACKETS, 'evil"} 1': 3 })).toEqual(PACKETS)
})

test.each<[unknown]>([
  [undefined],
  [null],
  ['x'],
  [[]],
  [{}],
  [{ ...PACKETS, strays: undefined }],
  [{ ...PACKETS, strays: -1 }],
  [{ ...PACKETS, strays: 0.5 }],
  [{ ...PACKETS, strays: '1' }],
  [{ ...PACKETS, strays: 2 ** 60 }],
])('%j is not what every counter has', (untrusted) => expect(parsePackets(untrusted)).toBeUndefined())

test('a counter has the name that other reasons have: with hyphens', () => {
  expect(packetsByName(PACKETS)).toEqual({
    admitted: 0,
    'unknown-peers': 1,
    'too-many': 2,
    fragments: 3,
    strays: 4,
    operators: 5,
  })
})
