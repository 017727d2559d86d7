import { expect, test } from 'vitest'
import {
  addResend,
  COLLABORATION_STATES,
  nextStatus,
  resendWaitSeconds,
  type CollaborationTrigger,
} from '../../../../src/api/model/collaboration.ts'

const TRIGGERS: readonly CollaborationTrigger[] = ['accept', 'reject', 'resend', 'remove', 'leave']

test('a collaboration has the five states of the API', () => {
  expect(COLLABORATION_STATES).toEqual(['pending', 'accepted', 'rejected', 'cancelled', 'ended'])
})

test('the transitions are those of the API, and no others are possible', () => {
  const possible = COLLABORATION_STATES.flatMap((from) =>
    TRIGGERS.flatMap((trigger) =>
      nextStatus(from, trigger) === undefined ? [] : `${from} ${trigger} ${nextStatus(from, trigger)!}`,
    ),
  )
  expect(possible).toEqual([
    'pending accept accepted',
    'pending reject rejected',
    'pending resend pending',
    'pending remove cancelled',
    'accepted remove ended',
    'accepted leave ended',
  ])
})

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
