import { expect, test } from 'vitest'
import { CommandFailure, EXIT } from '../../../src/runtime/exit-status.ts'

test('a failure is an error with its exit status, and without details unless it is given some', () => {
  const failure = new CommandFailure(EXIT.refused, 'no')
  expect([failure instanceof Error, failure.message, failure.status, failure.details]).toEqual([true, 'no', 2, {}])
  expect(new CommandFailure(EXIT.notFound, 'no', { id: 'srv-a' }).details).toEqual({ id: 'srv-a' })
})
