import { expect, test } from 'vitest'
import { REFUSALS, statusOf } from '../../../../src/imdsd/guest/refusals.ts'
import { DURATION_BOUNDS, isCounted, RequestMeter } from '../../../../src/imdsd/guest/meter.ts'
import { ROUTES } from '../../../../src/metadata/target.ts'

const METHODS = ['GET', 'HEAD', 'PUT', 'POST', 'DELETE', 'OPTIONS', 'other']
const OUTCOMES = [
  { outcome: 'served', reason: 'served', status: 200 },
  { outcome: 'not-modified', reason: 'served', status: 304 },
  ...REFUSALS.map((reason) => ({ outcome: reason, reason, status: statusOf(reason) })),
] as const

test('every combination of route, method and outcome is counted separately', () => {
  const meter = new RequestMeter()
  const expected = ROUTES.flatMap((route) =>
    METHODS.flatMap((method) => OUTCOMES.map((counted) => ({ route, method, ...counted, count: 0 }))),
  )
  expect(meter.counts()).toEqual([])
  for (const [i, row] of expected.entries()) {
    row.count = 1 + (i % 3)
    for (let n = 0; n < row.count; n++)
      meter.countResponse(
        row.route,
        row.method === 'other' ? ['PATCH', 'get', ''][n]! : row.method,
        row.outcome,
        undefined,
      )
  }
  expect(expected).toMatchObject(meter.counts())
  expect(meter.counts()).toHaveLength(expected.length)
  expect(METHODS.map(isCounted)).toEqual([true, true, true, true, true, true, true])
  expect(['PATCH', 'get', ''].map(isCounted)).toEqual([false, false, false])
})

test('a duration is in the bucket of its bound and in all above; an unread request has none', () => {
  const meter = new RequestMeter()
  const durations = [...DURATION_BOUNDS, 0, 2]
  for (const seconds of durations) meter.countResponse('/', 'GET', 'served', seconds)
  meter.countResponse('/', 'GET', 'malformed-request', undefined)
  meter.countResponse('unknown', 'GET', 'not-found', 0.5)
  const of = (name: string) => meter.durations().find(({ route }) => route === name)
  expect(of('/')).toMatchObject({ cumulative: DURATION_BOUNDS.map((_bound, i) => i + 2), count: durations.length })
  expect(of('/')?.sumSeconds).toBeCloseTo(
    durations.reduce((a, b) => a + b),
    9,
  )
  expect(of('unknown')).toEqual({
    route: 'unknown',
    cumulative: DURATION_BOUNDS.map((bound) => (bound >= 0.5 ? 1 : 0)),
    count: 1,
    sumSeconds: 0.5,
  })
  expect(of('/{version}')).toEqual({
    route: '/{version}',
    cumulative: DURATION_BOUNDS.map(() => 0),
    count: 0,
    sumSeconds: 0,
  })
  expect(meter.durations().map(({ route }) => route)).toEqual(ROUTES)
})

test('dropped connections, sessions and forwarded requests are counted', () => {
  const meter = new RequestMeter()
  expect([meter.drops, meter.sessions, meter.forwards]).toEqual([
    { descriptors: 0, 'over-share': 0, 'owner-changed': 0, stalled: 0 },
    { token: 0, none: 0, refused: 0 },
    0,
  ])
  meter.countDrops('stalled', 3)
  meter.countDrops('stalled', 2)
  meter.countSession('token')
  meter.countSession('token')
  meter.countForwarded()
  meter.countForwarded()
  expect([meter.drops, meter.sessions, meter.forwards]).toEqual([
    { descriptors: 0, 'over-share': 0, 'owner-changed': 0, stalled: 5 },
    { token: 2, none: 0, refused: 0 },
    2,
  ])
})
