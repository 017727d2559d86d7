import { expect, test } from 'vitest'
import { formatTrace } from '../../../src/imdsctl/trace.ts'
import { formatRows } from '../../../src/runtime/table.ts'
import { plain } from '../../../src/runtime/terminal.ts'
import type { Trace } from '../../../src/imdsd/operator/documents.ts'

const at = (ms: number) => new Date(Date.UTC(2026, 10, 23, 7) + ms).toISOString()
const NOW = Date.parse(at(180_000))

const TRACE: Trace = {
  id: 'srv-a',
  revision: 7,
  publishedAt: at(-4_000),
  boot: {
    recognised: true,
    firstRequestAt: at(0),
    lastRequestAt: at(75_000),
    crawlEndedAt: at(1_300),
    requests: 6,
    withToken: 3,
    userAgents: ['Cloud-Init/25.1', 'curl "x"\n'],
    topics: [
      { topic: 'token', requests: 1, served: 1, firstAt: at(0), lastAt: at(0) },
      { topic: 'user-data', requests: 5, served: 3, firstAt: at(20), lastAt: at(75_000) },
    ],
    refusals: [{ reason: 'forwarded', status: 403, requests: 2, lastAt: at(70_000) }],
  },
  recent: [],
}

test('a trace is a time line from the first request to the last', () => {
  const { title, events } = formatTrace(TRACE, NOW)
  expect([...title, ...formatRows(events, undefined, plain)].join('\n'))
    .toBe(`srv-a, revision 7, published at 2026-11-23T06:59:56.000Z, 3 min ago
booted at 2026-11-23T07:00:00.000Z, 3 min ago: 6 requests, 3 with a session token
user agent "Cloud-Init/25.1"
user agent "curl \\"x\\"\\n"
 +0.000 s  token             1 request, served
 +0.020 s  user-data         5 requests, 3 served, until +75.000 s
 +1.300 s  end of the crawl
+70.000 s  403 forwarded     2 requests refused, the last one now
+75.000 s  last request      1 min ago`)
})

test('a trace says that the guest has sent no request, or that no boot was seen', () => {
  const { id, revision, recent, boot } = TRACE
  const { crawlEndedAt: _, ...begun } = boot!
  expect(formatTrace({ id, revision, recent }, NOW)).toEqual({
    title: ['srv-a, revision 7, published at an unknown time', expect.stringMatching(/^its guest has sent no request/)],
    events: [],
  })
  expect(formatTrace({ ...TRACE, boot: { ...begun, recognised: false } }, NOW).title[1]).toMatch(
    /^no boot seen, first request at 2026-11-23T07:00:00.000Z/,
  )
})
