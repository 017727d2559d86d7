import { expect, test } from 'vitest'
import type { History } from '../../../../../src/imdsd/operator/page/history.ts'
import { formatRefusals, formatTraffic } from '../../../../../src/imdsd/operator/page/traffic.ts'

const aHistory = (change: Partial<Record<keyof History, unknown>>) => change as unknown as History

test('each interval is drawn at its time, and the latest at the right edge', () => {
  const interval = { requestsPerSecond: 8, refusalsPerSecond: 2, meanMs: 0.5, p99Ms: 1 }
  const history = aHistory({
    intervals: () => [
      { ...interval, endMs: 1_800_000 },
      { ...interval, endMs: 3_600_000 },
    ],
  })
  const text = formatTraffic(history, 3_600_000).toString()
  expect(text).toContain('points="300.0,0.0 600.0,0.0"')
  expect(text).toContain('refused 2.0')
  expect(text).toContain('99 % within 1.00 ms')
})

test('before the first interval is over, a sentence says so', () => {
  expect(formatTraffic(aHistory({ intervals: () => [] }), 0).toString()).toContain('not over yet')
})

test('refusals have their status', () => {
  const refusals = () => [{ reason: 'forwarded', lastHour: 3, sinceStart: 7 }]
  expect(formatRefusals(aHistory({ refusals })).toString()).toMatch(/>forwarded<.*>403<.*>3<.*>7</)
  expect(formatRefusals(aHistory({ refusals: () => [] })).toString()).toContain('No request was refused')
})
