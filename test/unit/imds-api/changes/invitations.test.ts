import { expect, test } from 'vitest'
import { addResend, resendWaitSeconds } from '../../../../src/imds-api/changes/invitations.ts'

test('an invitation is sent again at most 5 times in any hour', () => {
  const at = (minute: number) => new Date(minute * 60_000)
  let resends: Date[] = []
  for (const minute of [0, 1, 2, 30, 59]) resends = addResend(resends, at(minute))!
  expect(resends).toEqual([0, 1, 2, 30, 59].map(at))
  expect(resendWaitSeconds(resends.slice(1), at(59.9))).toBe(0)
  expect(addResend(resends, at(59.9))).toBeUndefined()
  expect(resendWaitSeconds(resends, at(59.9))).toBe(6)
  expect(resendWaitSeconds(resends, at(60))).toBe(0)
  expect(addResend(resends, at(60))).toEqual([1, 2, 30, 59, 60].map(at))
  expect(addResend(resends, at(200))).toEqual([at(200)])
})
