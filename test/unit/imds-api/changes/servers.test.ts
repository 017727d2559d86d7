import { expect, test } from 'vitest'
import {
  SERVER_EVENTS,
  serverAfter,
  serverAfterAll,
  type ServerEvent,
} from '../../../../src/imds-api/changes/servers.ts'
import type { ServerStatus } from '../../../../src/imds-api/model/server-actions.ts'

/** Each state: the events that are possible, and what follows. */
const TABLE: Record<ServerStatus, Partial<Record<ServerEvent, ServerStatus>>> = {
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
const EVENTS = Object.keys(SERVER_EVENTS) as ServerEvent[]

test.each(Object.entries(TABLE))('a server that is %s moves by these events, and by no other', (status, possible) => {
  const after = EVENTS.map((event) => [event, serverAfter(status as ServerStatus, event)])
  expect(after).toEqual(EVENTS.map((event) => [event, possible[event]]))
})

test('actions that wait lead to one state after the other', () => {
  expect(serverAfterAll('active', ['stop', 'start', 'reboot', 'snapshot', 'shutdown'])).toBe('inactive')
  expect(serverAfterAll('active', ['start'])).toBe('active')
  expect(serverAfterAll('active', [])).toBe('active')
})
