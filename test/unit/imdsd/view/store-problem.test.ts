import { expect, test } from 'vitest'
import { formatStoreProblem, storeProblem } from '../../../../src/imdsd/view/store-problem.ts'

test.each([
  [0, 0, false],
  [1, 0, false],
  [1, 1, true],
  [2, 1, false],
  [2, 2, true],
  [10, 9, false],
  [10, 10, true],
  [11, 10, true],
  [100, 90, false],
  [100, 91, true],
])('of %i records %i faulty ones make the store unusable: %s', (named, faulty, isUnusable) => {
  expect(
    storeProblem(
      named,
      Array.from({ length: faulty }, () => 'record'),
    ) !== undefined,
  ).toBe(isUnusable)
})

test('the cause is that of the most frequent fault', () => {
  expect(storeProblem(3, ['record', 'rejected', 'rejected'])).toMatchObject({
    named: 3,
    faulty: 3,
    reasons: { record: 1, rejected: 2 },
    cause: expect.stringMatching(/^the record keys are not those/) as string,
  })
  expect(storeProblem(1, ['record'])!.cause).toMatch(/this version of imds cannot read: upgrade imds/)
  expect(storeProblem(1, ['unreadable'])!.cause).toMatch(/IMDS_RECORD_KEYS_FILE is not set/)
  expect(formatStoreProblem(storeProblem(1, ['user-data'])!)).toMatch(
    /^1 of 1 records that the store has for this hypervisor cannot be used. Likely cause: .*IMDS_USER_DATA_MAX_BYTES/,
  )
})
