import { expect, test } from 'vitest'
import { EXIT, Failure } from '../../../src/runtime/failure.ts'

test('each exit status has one meaning, and those beyond 2 are of sysexits.h or a temporary failure', () => {
  const statuses = Object.values(EXIT)
  expect(new Set(statuses).size).toBe(statuses.length)
  expect(statuses.filter((status) => status > 2 && (status < 64 || status > 78))).toEqual([])
  expect([EXIT.done, EXIT.usage, EXIT.badData, EXIT.noInput, EXIT.unavailable, EXIT.timeout]).toEqual([
    0, 64, 65, 66, 69, 75,
  ])
})

test('a failure is an error with its exit status, and without details unless it is given some', () => {
  const failure = new Failure(EXIT.refused, 'no')
  expect([failure instanceof Error, failure.message, failure.status, failure.details]).toEqual([true, 'no', 2, {}])
  expect(new Failure(EXIT.notFound, 'no', { id: 'srv-a' }).details).toEqual({ id: 'srv-a' })
})
