import { expect, test } from 'vitest'
import { COLLABORATION_STATES, nextStatus, type CollaborationTrigger } from '../../../../src/api/model/collaboration.ts'

const TRIGGERS: readonly CollaborationTrigger[] = ['accept', 'reject', 'resend', 'remove', 'leave']

test('a collaboration has the five states of the interface', () => {
  expect(COLLABORATION_STATES).toEqual(['pending', 'accepted', 'rejected', 'cancelled', 'ended'])
})

test('the transitions are those of the interface, and no others are possible', () => {
  const possible = COLLABORATION_STATES.flatMap((from) => TRIGGERS.flatMap((trigger) => nextStatus(from, trigger) === undefined ? [] : `${from} ${trigger} ${nextStatus(from, trigger)!}`))
  expect(possible).toEqual([
    'pending accept accepted', 'pending reject rejected', 'pending resend pending', 'pending remove cancelled', 'accepted remove ended', 'accepted leave ended',
  ])
})
