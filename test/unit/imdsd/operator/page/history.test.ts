import { expect, test } from 'vitest'
import { RequestMeter } from '../../../../../src/imdsd/guest/meter.ts'
import { buildHistory, INTERVAL_MS } from '../../../../../src/imdsd/operator/page/history.ts'

function aHistory() {
  const clock = { ms: 1_000 }
  const meter = new RequestMeter()
  const history = buildHistory(meter, () => clock.ms)
  const pass = () => {
    clock.ms += INTERVAL_MS
    history.sample()
  }
  return { clock, meter, history, pass }
}

test('an interval has the rates, the mean, and the bound below which 99 of 100 durations were', () => {
  const { meter, history, pass } = aHistory()
  pass()
  for (let i = 0; i < 297; i++) meter.countResponse('/{version}/meta-data', 'GET', 'served', 0.0004)
  for (let i = 0; i < 3; i++) meter.countResponse('unknown', 'GET', 'over-share', 0.04)
  pass()
  const [idle, busy] = history.intervals()
  expect(idle).toEqual({
    endMs: 1_000 + INTERVAL_MS,
    requestsPerSecond: 0,
    refusalsPerSecond: 0,
    meanMs: undefined,
    p99Ms: undefined,
  })
  expect(busy).toMatchObject({ requestsPerSecond: 10, refusalsPerSecond: 0.1, p99Ms: 0.5 })
  expect(busy?.meanMs).toBeCloseTo((297 * 0.4 + 3 * 40) / 300)
})

test('a duration above all bounds counts as the highest bound', () => {
  const { meter, history, pass } = aHistory()
  meter.countResponse('unknown', 'GET', 'served', 60)
  pass()
  expect(history.intervals()[0]?.p99Ms).toBe(1_000)
})

test('the history covers an hour and grows no further, and so do the refusals of the last hour', () => {
  const { meter, history, pass } = aHistory()
  meter.countResponse('unknown', 'GET', 'unknown-peer', 0.001)
  for (let i = 0; i < 500; i++) pass()
  expect(history.intervals()).toHaveLength(120)
  meter.countResponse('unknown', 'GET', 'forwarded', 0.001)
  expect(history.refusals()).toEqual([
    { reason: 'forwarded', lastHour: 1, sinceStart: 1 },
    { reason: 'unknown-peer', lastHour: 0, sinceStart: 1 },
  ])
})
