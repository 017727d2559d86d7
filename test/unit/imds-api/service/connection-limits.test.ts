import { expect, test } from 'vitest'
import { shareConnections, shareOfAddress } from '../../../../src/imds-api/service/connection-limits.ts'

test('the listeners share the descriptors, and leave 192 for imds-api itself', () => {
  expect(shareConnections(160)).toEqual({ clients: 25, hypervisors: 10, operators: 5 })
  expect(shareConnections(1_024)).toEqual({ clients: 520, hypervisors: 208, operators: 64 })
  expect(shareConnections(65_536)).toEqual({ clients: 4_096, hypervisors: 4_096, operators: 64 })
  expect(shareConnections(Infinity)).toEqual({ clients: 4_096, hypervisors: 4_096, operators: 64 })
  expect(shareConnections(8)).toEqual({ clients: 1, hypervisors: 1, operators: 1 })
  for (const descriptors of [256, 300, 1_024]) {
    const { clients, hypervisors, operators } = shareConnections(descriptors)
    expect(clients + hypervisors + operators).toBeLessThanOrEqual(descriptors - 192)
  }
})

test('an address has the share of the setting, and at most half of all', () => {
  expect(shareOfAddress(256, 4_096)).toBe(256)
  expect(shareOfAddress(256, 60)).toBe(30)
  expect(shareOfAddress(256, 1)).toBe(1)
})
