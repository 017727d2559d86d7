import { expect, test } from 'vitest'
import { BootTraces } from '../../../../src/imdsd/guest/boot-traces.ts'
import type { FoundGuest } from '../../../../src/imdsd/guest/identify.ts'
import type { Topic } from '../../../../src/metadata/target.ts'
import { aGuestServer } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

/** Traces whose view is complete at 1000 ms, and the durations that they observed. */
function someTraces() {
  const traces = new BootTraces()
  const observed: [string, number][] = []
  traces.onDuration((phase, seconds) => observed.push([phase, seconds]))
  traces.complete(1_000)
  traces.complete(5_000)
  return { traces, observed }
}

const guest = (sinceMs: number | undefined) => ({ stay: { sinceMs } })

function crawl(traces: BootTraces, owner: object, atMs: number): void {
  for (const topic of ['instance-id', 'user-data'] satisfies Topic[])
    traces.note({ kind: 'owned', owner } as FoundGuest, {
      topic,
      outcome: 'served',
      hasToken: false,
      agent: undefined,
      atMs: topic === 'user-data' ? atMs + 500 : atMs,
    })
}

test('the first boot of an instance is observed from its publish, a later one only from its first request', () => {
  const { traces, observed } = someTraces()
  const owner = guest(2_000)
  crawl(traces, owner, 9_000)
  crawl(traces, owner, 60_000)
  traces.of(owner)?.endCrawlIfSilent(90_000)
  expect(observed).toEqual([
    ['first-request', 7],
    ['crawl', 0.5],
    ['crawl', 0.5],
  ])
})

test.each([
  ['was there when the daemon started', 1_000],
  ['came by a live migration', undefined],
])('an instance that %s has no time of its publish', (_what, sinceMs) => {
  const { traces, observed } = someTraces()
  crawl(traces, guest(sinceMs), 9_000)
  expect(traces.publishedMs(guest(sinceMs))).toBeUndefined()
  expect(observed).toEqual([])
})

test('a request of an unknown or contested address is in no trace', () => {
  const { traces } = someTraces()
  const request = { topic: 'other', outcome: 'unknown-peer', hasToken: false, agent: 'x', atMs: 0 } as const
  for (const kind of ['unknown', 'contested'] as const) traces.note({ kind }, request)
  expect(traces.of(guest(0))).toBeUndefined()
})

test('H10: a trace lasts over changes of its instance, and ends when the view removes it', async () => {
  const { put, ask, view, traces } = aGuestServer()
  const { id } = put(anInstance())
  await ask('/latest/meta-data/')
  put(anInstance({ revision: 2, hypervisors: ['hv1', 'hv2'] }))
  await ask({ url: '/latest/user-data', headers: { 'x-forwarded-for': '10.0.0.1' } })
  expect(traces.of(view.get(id)!)?.recent()).toMatchObject([
    { topic: 'user-data', outcome: 'forwarded' },
    { topic: 'meta-data/', outcome: 'served' },
  ])
  view.remove(id, 1)
  put(anInstance({ revision: 3, hypervisors: ['hv1', 'hv2'] }))
  expect(traces.of(view.get(id)!)).toBeUndefined()
  expect(view.get(id)!.stay.sinceMs).toBeUndefined()
})

test('H10: a request beyond the fair share is in the trace', async () => {
  const { put, ask, view, traces } = aGuestServer({ share: { burst: 0, perSecond: 0.001, connections: 64 } })
  const { id } = put(anInstance())
  let status = 200
  for (let n = 0; n < 1_000 && status === 200; n++) status = (await ask('/latest/meta-data/')).status
  expect(status).toBe(503)
  expect(traces.of(view.get(id)!)?.boot(0).refusals).toMatchObject([{ reason: 'over-share', requests: 1 }])
})
