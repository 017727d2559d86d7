import { expect, test } from 'vitest'
import { changeEvents, type MaintenanceEvent } from '../../../src/metadata/events.ts'
import { MAX_EVENTS } from '../../../src/metadata/schema.ts'

const REBOOT = { id: 'evt-1', code: 'system-reboot', notBefore: '2026-11-20T15:04:05Z', description: 'a reboot' }

/** The events after these changes. Throws at the first that has a fault. */
function eventsAfter(...changes: Parameters<typeof changeEvents>[1][]): MaintenanceEvent[] {
  return changes.reduce<MaintenanceEvent[]>((events, change) => {
    const changed = changeEvents(events, change)
    if (!changed.ok) throw new Error(changed.faults.join())
    return changed.value
  }, [])
}

test('H8: a scheduled event is active until it is completed or canceled', () => {
  const schedule = { kind: 'schedule', event: REBOOT } as const
  expect(eventsAfter(schedule)).toEqual([{ ...REBOOT, state: 'active' }])
  for (const state of ['completed', 'canceled'] as const)
    expect(eventsAfter(schedule, { kind: 'end', id: 'evt-1', state })).toEqual([{ ...REBOOT, state }])
})

test('an event with a known id replaces it', () => {
  const later = { ...REBOOT, notBefore: '2026-11-21T15:04:05Z' }
  const events = eventsAfter({ kind: 'schedule', event: REBOOT }, { kind: 'schedule', event: later })
  expect(events).toEqual([{ ...later, state: 'active' }])
})

test('beyond the limit the oldest event that has ended is dropped; active ones are not', () => {
  const all = Array.from({ length: MAX_EVENTS }, (_, i) => ({
    ...REBOOT,
    id: `evt-${i}`,
    state: 'active' as const,
  }))
  const full = all.map((event) => ({ ...event, code: 'system-reboot' as const }))
  const more = { kind: 'schedule', event: { ...REBOOT, id: 'evt-new' } } as const
  expect(changeEvents(full, more)).toEqual({
    ok: false,
    faults: ['there are 32 active events already: complete or cancel one'],
  })
  const withEnded = full.map((event, i) => (i === 5 || i === 7 ? { ...event, state: 'completed' as const } : event))
  const changed = changeEvents(withEnded, more)
  const ids = changed.ok ? changed.value.map(({ id }) => id) : []
  expect(ids).toHaveLength(MAX_EVENTS)
  expect([ids.includes('evt-5'), ids.includes('evt-7'), ids.at(-1)]).toEqual([false, true, 'evt-new'])
})

test('what is wrong is named with the rule', () => {
  expect(changeEvents([], { kind: 'end', id: 'evt-9', state: 'completed' })).toEqual({
    ok: false,
    faults: ['there is no event evt-9'],
  })
  const faults = changeEvents([], { kind: 'schedule', event: { id: 'evt-1', code: 'reboot', notBefore: 'soon' } })
  expect(!faults.ok && [...faults.faults].sort()).toEqual([
    'code must be one of instance-reboot, instance-retirement, instance-stop, system-maintenance, system-reboot',
    'description must be a text on one line without control characters',
    'notBefore must be a time such as 2026-11-20T15:04:05Z (RFC 3339)',
  ])
})
