import { expect, test } from 'vitest'
import { TokenBucket } from '../../../src/limits/token-bucket.ts'

/** How many tokens can be taken one by one, at most 1000. */
function taken(bucket: TokenBucket, nowMs: number, burst?: number): number {
  let count = 0
  while (count < 1_000 && bucket.hasToken(nowMs, burst)) {
    bucket.take(nowMs, 1)
    count += 1
  }
  return count
}

test('a bucket begins full and refills at its rate, up to its burst', () => {
  const bucket = new TokenBucket(10, 4)
  expect([taken(bucket, 0), taken(bucket, 250), taken(bucket, 499), taken(bucket, 500), taken(bucket, 60_000)]).toEqual(
    [10, 1, 0, 1, 10],
  )
})

test('a larger burst allows more at once, and the debt is refilled at the same rate', () => {
  const bucket = new TokenBucket(10, 4)
  expect([taken(bucket, 0, 30), taken(bucket, 5_000), taken(bucket, 5_250)]).toEqual([30, 0, 1])
})

test('parts of tokens can be taken while a whole one is there', () => {
  const bucket = new TokenBucket(2, 4)
  bucket.take(0, 1.5)
  expect([bucket.hasToken(0), bucket.isFull(374), bucket.isFull(400)]).toEqual([false, false, true])
})

test('tryTake takes a token only if there is one', () => {
  const bucket = new TokenBucket(1, 4)
  expect([bucket.tryTake(0), bucket.tryTake(0), bucket.tryTake(250)]).toEqual([true, false, true])
})

test('tokens that are taken late are not those that were gained before', () => {
  const bucket = new TokenBucket(2, 4)
  bucket.take(0, 1)
  bucket.take(60_000, 2)
  expect(bucket.hasToken(60_000)).toBe(false)
})
