import { expect, test } from 'vitest'
import { collaborationAfter, type CollaborationEvent } from '../../../../src/imds-api/changes/collaborations.ts'
import { COLLABORATION_STATES, type CollaborationStatus } from '../../../../src/imds-api/model/collaborations.ts'

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
