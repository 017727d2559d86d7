import { expect, test } from 'vitest'
import {
  addResend,
  collaborationAfter,
  resendWaitSeconds,
  type CollaborationEvent,
} from '../../../../src/api/changes/collaborations.ts'
import { COLLABORATION_STATES, type CollaborationStatus } from '../../../../src/api/model/collaborations.ts'

/** Each state: the events that are possible, and what follows. */
const TABLE: Record<CollaborationStatus, Partial<Record<CollaborationEvent, CollaborationStatus>>> = {
  pending: { accept: 'accepted', reject: 'rejected', resend: 'pending', remove: 'cancelled' },
  accepted: { remove: 'ended', leave: 'ended' },
  rejected: {},
  cancelled: {},
  ended: {},
}
const EVENTS = ['accept', 'reject', 'resend', 'remove', 'leave'] as const satisfies readonly CollaborationEvent[]

test('a collaboration has the five states of the interface', () => {
  expect(COLLABORATION_STATES).toEqual(['pending', 'accepted', 'rejected', 'cancelled', 'ended'])
})

test.each(COLLABORATION_STATES)('a collaboration that is %s moves by these events, and by no other', (status) => {
  const after = EVENTS.map((event) => [event, collaborationAfter(status, event)])
  expect(after).toEqual(EVENTS.map((event) => [event, TABLE[status][event]]))
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
