import { expect, test } from 'vitest'
import { collaborationAfter, type CollaborationTransition } from '../../../../src/imds-api/changes/collaborations.ts'
import { COLLABORATION_STATES, type CollaborationStatus } from '../../../../src/imds-api/model/collaborations.ts'

/** Each state: the transitions that are possible, and the state after each. */
const TABLE: Record<CollaborationStatus, Partial<Record<CollaborationTransition, CollaborationStatus>>> = {
  pending: { accept: 'accepted', reject: 'rejected', resend: 'pending', cancel: 'cancelled' },
  accepted: { end: 'ended' },
  rejected: {},
  cancelled: {},
  ended: {},
}
const TRANSITIONS = [
  'accept',
  'reject',
  'resend',
  'cancel',
  'end',
] as const satisfies readonly CollaborationTransition[]

test('a collaboration has the five states of the interface', () => {
  expect(COLLABORATION_STATES).toEqual(['pending', 'accepted', 'rejected', 'cancelled', 'ended'])
})

test.each(COLLABORATION_STATES)('a collaboration that is %s moves by these transitions only', (status) => {
  const after = TRANSITIONS.map((name) => [name, collaborationAfter(status, name)])
  expect(after).toEqual(TRANSITIONS.map((name) => [name, TABLE[status][name]]))
})
