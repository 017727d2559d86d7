import { expect, test } from 'vitest'
import { rateLimitHeaders } from '../../../src/limits/rate-limit-headers.ts'

const LIMIT = { name: 'failures', quota: 10, windowSeconds: 600, retrySeconds: 60 }

test('the headers of a rate limit have the limit and what is left, and when nothing is left, for how long', () => {
  expect(rateLimitHeaders({ ...LIMIT, remaining: 1 })).toEqual({
    'RateLimit-Policy': '"failures";q=10;w=600',
    RateLimit: '"failures";r=1',
  })
  expect(rateLimitHeaders({ ...LIMIT, remaining: 0 })).toMatchObject({ RateLimit: '"failures";r=0;t=60' })
})
