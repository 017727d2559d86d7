import { expect, test } from 'vitest'
import {
  actionAfter,
  actionState,
  type ActionTransition,
  type ActionState,
} from '../../../../src/imds-api/changes/actions.ts'

/** Each state: the transitions that are possible, and the state after each. */
const TABLE: Record<ActionState, Partial<Record<ActionTransition, ActionState>>> = {
  waiting: { giveOut: 'givenOut', succeed: 'succeeded', supersede: 'failed' },
  givenOut: { giveOut: 'givenOut', succeed: 'succeeded', fail: 'failed' },
  succeeded: {},
  failed: {},
}
const TRANSITIONS = ['giveOut', 'succeed', 'fail', 'supersede'] as const satisfies readonly ActionTransition[]

test.each(Object.entries(TABLE))('an action that is %s moves by these transitions only', (state, possible) => {
  const after = TRANSITIONS.map((name) => [name, actionAfter(state as ActionState, name)])
  expect(after).toEqual(TRANSITIONS.map((name) => [name, possible[name]]))
})

test('the state of an action is its outcome, or else whether a hypervisor has got it', () => {
  expect(actionState({ outcome: null, given_out_at: null })).toBe('waiting')
  expect(actionState({ outcome: null, given_out_at: new Date() })).toBe('givenOut')
  expect(actionState({ outcome: 'failed', given_out_at: null })).toBe('failed')
  expect(actionState({ outcome: 'succeeded', given_out_at: new Date() })).toBe('succeeded')
})
