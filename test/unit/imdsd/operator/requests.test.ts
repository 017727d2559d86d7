import { expect, test } from 'vitest'
import { requestsOf } from '../../../../src/imdsd/operator/requests.ts'

test('H10: what a guest has asked for has wall times and statuses, the latest first', () => {
  const rows = [
    { topic: 'user-data', outcome: 'not-found', agent: 'curl/8', atMs: 3_000, count: 2 },
    { topic: 'token', outcome: 'served', agent: undefined, atMs: 1_000, count: 1 },
  ] as const
  const wallMs = Date.parse('2026-11-23T12:00:00Z')
  const parts = { requests: { of: () => [...rows] }, now: () => 5_000, wall: () => wallMs }
  expect(requestsOf(parts, { stay: {} })).toEqual([
    {
      topic: 'user-data',
      at: '2026-11-23T11:59:58.000Z',
      status: 404,
      reason: 'not-found',
      userAgent: 'curl/8',
      count: 2,
    },
    { topic: 'token', at: '2026-11-23T11:59:56.000Z', status: 200, reason: 'served', count: 1 },
  ])
})
