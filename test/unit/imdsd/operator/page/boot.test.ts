import { expect, test } from 'vitest'
import { formatBoot } from '../../../../../src/imdsd/operator/page/boot.ts'
import type { Trace } from '../../../../../src/imdsd/operator/documents.ts'

const AT = '2026-11-23T12:00:00.000Z'
const LATER = '2026-11-23T12:00:02.500Z'
const NOW = Date.parse(AT) + 60_000
const TRACE: Trace = {
  id: 'srv-a',
  revision: 7,
  publishedAt: AT,
  boot: {
    recognised: true,
    firstRequestAt: AT,
    lastRequestAt: LATER,
    crawlEndedAt: LATER,
    requests: 12,
    withToken: 11,
    userAgents: ['<script>alert(1)</script>'],
    topics: [{ topic: 'user-data', requests: 2, served: 1, firstAt: AT, lastAt: LATER }],
    refusals: [{ reason: 'not-found', status: 404, requests: 1, lastAt: LATER }],
  },
  recent: [{ at: LATER, status: 404, reason: 'not-found', topic: 'user-data' }],
}

test('a boot has its topics, refusals and last requests, with the times since its first request', () => {
  const text = formatBoot(TRACE, NOW).toString()
  expect(text).toContain('Revision 7, published 1 min ago')
  expect(text).toContain('12 requests, 11 with a session token. The crawl ended at +2.500 s.')
  expect(text).toMatch(/>user-data<.*>\+0\.000 s<.*>\+2\.500 s<.*>2<.*>1</)
  expect(text).toMatch(/>not-found<.*>404<.*>1<.*>\+2\.500 s</)
  expect(text).toMatch(/>57 s ago<.*>user-data<.*>404<.*>not-found</)
})

test('what a guest sends as its user agent is text', () => {
  expect(formatBoot(TRACE, NOW).toString()).toContain('<code>&lt;script&gt;alert(1)&lt;/script&gt;</code>')
})

test('a guest that has sent no request has a sentence', () => {
  const text = formatBoot({ id: 'srv-a', revision: 7, recent: [] }, NOW).toString()
  expect(text).toContain('published at an unknown time')
  expect(text).toContain('has sent no request')
})
