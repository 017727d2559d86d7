import { expect, test } from 'vitest'
import {
  SERVER_TRANSITIONS,
  serverAfter,
  serverAfterAll,
  type ServerTransition,
} from '../../../../src/imds-api/changes/servers.ts'
import type { ServerStatus } from '../../../../src/imds-api/model/server-actions.ts'

/** Each state: the transitions that are possible, and the state after each. */
const TABLE: Record<ServerStatus, Partial<Record<ServerTransition, ServerStatus>>> = {
  creating: { publish: 'active', failCreate: 'failed', delete: 'deleting' },
  active: {
    stop: 'inactive',
    shutdown: 'inactive',
    reboot: 'active',
    reset: 'active',
    snapshot: 'active',
    activate_console: 'active',
    delete: 'deleting',
  },
  inactive: { start: 'active', snapshot: 'inactive', delete: 'deleting' },
  deleting: { failDelete: 'failed', remove: 'deleted' },
  deleted: {},
  failed: { delete: 'deleting' },
  unavailable: { delete: 'deleting' },
}
const TRANSITIONS = Object.keys(SERVER_TRANSITIONS) as ServerTransition[]

test.each(Object.entries(TABLE))('a server that is %s moves by these transitions only', (status, possible) => {
  const after = TRANSITIONS.map((name) => [name, serverAfter(status as ServerStatus, name)])
  expect(after).toEqual(TRANSITIONS.map((name) => [name, possible[name]]))
})

test('actions that wait lead to one state after the other', () => {
  expect(serverAfterAll('active', ['stop', 'start', 'reboot', 'snapshot', 'shutdown'])).toBe('inactive')
  expect(serverAfterAll('active', ['start'])).toBe('active')
  expect(serverAfterAll('active', [])).toBe('active')
})
