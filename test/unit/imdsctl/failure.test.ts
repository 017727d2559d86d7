import { expect, test } from 'vitest'
import { Failure } from '../../../src/imdsctl/failure.ts'
import { EXIT } from '../../../src/runtime/exit-status.ts'

test('a failure is an error with its exit status, and without details unless it is given some', () => {
  const failure = new Failure(EXIT.refused, 'no')
  expect([failure instanceof Error, failure.message, failure.status, failure.details]).toEqual([true, 'no', 2, {}])
  expect(new Failure(EXIT.notFound, 'no', { id: 'srv-a' }).details).toEqual({ id: 'srv-a' })
})
