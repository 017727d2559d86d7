import { expect, test } from 'vitest'
import { actionAfter, stateOf, type ActionEvent, type ActionState } from '../../../../src/imds-api/changes/actions.ts'

/** Each state: the events that are possible, and what follows. */
const TABLE: Record<ActionState, Partial<Record<ActionEvent, ActionState>>> = {
  waiting: { giveOut: 'givenOut', succeed: 'succeeded', supersede: 'failed' },
  givenOut: { giveOut: 'givenOut', succeed: 'succeeded', fail: 'failed' },
  succeeded: {},
  failed: {},
}
const EVENTS = ['giveOut', 'succeed', 'fail', 'supersede'] as const satisfies readonly ActionEvent[]

test.each(Object.entries(TABLE))('an action that is %s moves by these events, and by no other', (state, possible) => {
  const after = EVENTS.map((event) => [event, actionAfter(state as ActionState, event)])
  expect(after).toEqual(EVENTS.map((event) => [event, possible[event]]))
})

test('the state of an action is its outcome, or else whether a hypervisor has got it', () => {
  expect(stateOf({ outcome: null, given_out_at: null })).toBe('waiting')
  expect(stateOf({ outcome: null, given_out_at: new Date() })).toBe('givenOut')
  expect(stateOf({ outcome: 'failed', given_out_at: null })).toBe('failed')
  expect(stateOf({ outcome: 'succeeded', given_out_at: new Date() })).toBe('succeeded')
})
