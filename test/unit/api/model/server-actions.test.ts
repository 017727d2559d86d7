import { expect, test } from 'vitest'
import type { ServerStatus } from '../../../../src/api/model/server-actions.ts'
import { isPossible, SERVER_ACTIONS, statusAfter } from '../../../../src/api/model/server-actions.ts'

const STATES: readonly ServerStatus[] = [
  'creating',
  'active',
  'inactive',
  'deleting',
  'deleted',
  'failed',
  'unavailable',
]

test('each action is possible in these states only, and leads to this one', () => {
  const table = SERVER_ACTIONS.map((action) => [
    action,
    ...STATES.filter((state) => isPossible(action, state)).map(
      (state) => `${state} -> ${statusAfter(state, [action])}`,
    ),
  ])
  expect(table).toEqual([
    ['start', 'inactive -> active'],
    ['stop', 'active -> inactive'],
    ['shutdown', 'active -> inactive'],
    ['reboot', 'active -> active'],
    ['reset', 'active -> active'],
    ['snapshot', 'active -> active', 'inactive -> inactive'],
    ['activate_console', 'active -> active'],
  ])
})

test('an action that is not possible leaves the state as it is', () => {
  for (const action of SERVER_ACTIONS) {
    for (const state of STATES.filter((one) => !isPossible(action, one)))
      expect(statusAfter(state, [action])).toBe(state)
  }
})

test('actions that wait lead to one state after the other', () => {
  expect(statusAfter('active', ['stop', 'start', 'reboot', 'snapshot', 'shutdown'])).toBe('inactive')
  expect(statusAfter('active', [])).toBe('active')
  expect(statusAfter('inactive', ['delete_image', 'create', 'delete', 'start'])).toBe('active')
})
