import { expect, test } from 'vitest'
import { BootTrace, SILENCE_MS, type Noted } from '../../../../src/imdsd/guest/boot-trace.ts'
import { REFUSALS } from '../../../../src/imdsd/guest/refusals.ts'
import { TOPICS, type Topic } from '../../../../src/metadata/target.ts'

/** A trace with what it reported, and a function that notes a request. */
function aTrace() {
  const reported: [string, number][] = []
  const trace = new BootTrace({
    onBegin: (firstMs) => reported.push(['began', firstMs]),
    onCrawlEnd: (tookMs) => reported.push(['crawled', tookMs]),
  })
  const note = (atMs: number, topic: Topic, change: Partial<Noted> = {}) => {
    trace.note({ topic, outcome: 'served', hasToken: false, agent: 'Cloud-Init/25.1', atMs, ...change })
  }
  /** The requests of a boot, from a time on. */
  const crawl = (fromMs: number) => {
    for (const [i, topic] of (['token', 'instance-id', 'user-data', 'meta-data/', 'public-keys'] as const).entries())
      note(fromMs + i * 100, topic)
  }
  return { trace, note, crawl, reported }
}

test('H10: a boot has its first and last request, its topics in order, tokens and refusals', () => {
  const { trace, note } = aTrace()
  note(1_000, 'token')
  note(1_100, 'instance-id', { hasToken: true })
  note(1_300, 'user-data', { hasToken: true })
  note(1_400, 'user-data', { outcome: 'forwarded' })
  note(1_500, 'instance-id', { hasToken: true })
  expect(trace.boot(1_600)).toEqual({
    isCrawl: true,
    firstMs: 1_000,
    lastMs: 1_500,
    crawledMs: undefined,
    requests: 5,
    withToken: 3,
    agents: ['Cloud-Init/25.1'],
    topics: [
      { topic: 'token', firstMs: 1_000, lastMs: 1_000, requests: 1, served: 1 },
      { topic: 'instance-id', firstMs: 1_100, lastMs: 1_500, requests: 2, served: 2 },
      { topic: 'user-data', firstMs: 1_300, lastMs: 1_400, requests: 2, served: 1 },
    ],
    refusals: [{ reason: 'forwarded', lastMs: 1_400, requests: 1 }],
  })
})

test('H10: a crawl after a pause is a new boot, which begins with the first request after the pause', () => {
  const { trace, note, crawl } = aTrace()
  crawl(0)
  note(400 + SILENCE_MS, 'token')
  expect(trace.boot(400 + SILENCE_MS)).toMatchObject({ firstMs: 0, crawledMs: 400, requests: 6 })
  note(500 + SILENCE_MS, 'instance-id')
  note(600 + SILENCE_MS, 'user-data')
  expect(trace.boot(600 + SILENCE_MS)).toMatchObject({ firstMs: 400 + SILENCE_MS, crawledMs: undefined, requests: 3 })
  crawl(50_000)
  expect(trace.boot(50_400)).toMatchObject({ firstMs: 50_000, requests: 5, withToken: 0 })
})

test('H10: neither one request at intervals nor a second crawl without a pause is a new boot', () => {
  const { trace, note, crawl } = aTrace()
  crawl(0)
  crawl(SILENCE_MS)
  for (let minute = 1; minute <= 100; minute++) {
    note(minute * 60_000, 'token')
    note(minute * 60_000 + 10, 'instance-id')
  }
  expect(trace.boot(7_000_000)).toMatchObject({ firstMs: 0, lastMs: 6_000_010, crawledMs: 10_400, requests: 210 })
})

test('each boot is reported once when it is recognised, and once when its crawl is over', () => {
  const { trace, note, crawl, reported } = aTrace()
  crawl(1_000)
  expect(reported).toEqual([['began', 1_000]])
  trace.endCrawlIfSilent(1_400 + SILENCE_MS - 1)
  expect(reported).toHaveLength(1)
  trace.endCrawlIfSilent(1_400 + SILENCE_MS)
  trace.endCrawlIfSilent(1_400 + SILENCE_MS)
  note(90_000, 'instance-id')
  crawl(200_000)
  crawl(300_000)
  expect(reported).toEqual([
    ['began', 1_000],
    ['crawled', 400],
    ['began', 200_000],
    ['crawled', 400],
    ['began', 300_000],
  ])
})

test('an agent that never pauses begins no boot when it asks for a second thing after an hour', () => {
  const { trace, note, crawl } = aTrace()
  crawl(0)
  for (let s = 20; s <= 3_600; s += 5) note(s * 1_000, 'instance-id')
  note(3_601_000, 'user-data')
  expect(trace.boot(3_602_000).firstMs).toBe(0)
})

test('requests without a crawl are no boot: they are shown, and not reported', () => {
  const { trace, note, reported } = aTrace()
  note(0, 'placement')
  expect(trace.boot(SILENCE_MS)).toMatchObject({ isCrawl: false, requests: 1 })
  expect(reported).toEqual([])
})

test('H10: whatever a guest sends, a trace has four user agents of 128 characters and eight last requests', () => {
  const { trace, note } = aTrace()
  for (let n = 0; n < 1_000; n++) {
    const outcome = REFUSALS[n % REFUSALS.length]!
    note(n * 9_000, TOPICS[n % TOPICS.length]!, { outcome, agent: String(n).padEnd(16_000, 'x') })
  }
  const { agents, topics, refusals } = trace.boot(9_000_000)
  expect(agents).toEqual(['0', '1', '2', '3'].map((n) => n.padEnd(128, 'x')))
  expect([topics.length, refusals.length]).toEqual([TOPICS.length, REFUSALS.length])
  expect(trace.recent().map(({ atMs }) => atMs / 9_000)).toEqual([999, 998, 997, 996, 995, 994, 993, 992])
})

test('the last requests are those of before a boot too, each with its result', () => {
  const { trace, note } = aTrace()
  note(0, 'placement', { outcome: 'token-required' })
  note(60_000, 'user-data')
  note(60_001, 'instance-id', { agent: undefined })
  expect(trace.recent()).toEqual([
    { atMs: 60_001, topic: 'instance-id', outcome: 'served' },
    { atMs: 60_000, topic: 'user-data', outcome: 'served' },
    { atMs: 0, topic: 'placement', outcome: 'token-required' },
  ])
})
