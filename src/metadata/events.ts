/**
 * Changes of the maintenance events of a record (contract H8): an event is scheduled, and ends as completed or canceled.
 */
import Value from 'typebox/value'
import type { EventChange } from './event-options.ts'
import type { Instance } from './instance.ts'
import type { Parsed } from './parsed.ts'
import { MAX_EVENTS, InstanceSchema } from './schema.ts'

export type MaintenanceEvent = Instance['events'][number]

const SCHEMA = InstanceSchema.properties.events.items

/**
 * The events after a change, or its faults as sentences. If a record would have more than MAX_EVENTS, it loses those
 * that ended first.
 */
export function changeEvents(
  events: readonly MaintenanceEvent[],
  change: EventChange,
): Parsed<MaintenanceEvent[], string> {
  if (change.kind === 'end') {
    const { id, state } = change
    return events.some((event) => event.id === id)
      ? { ok: true, value: events.map((event) => (event.id === id ? { ...event, state } : event)) }
      : { ok: false, faults: [`there is no event ${id}`] }
  }
  const event: unknown = Value.Default(SCHEMA, { ...change.event })
  if (!Value.Check(SCHEMA, event)) return { ok: false, faults: faultsOf(event) }
  const others = events.filter(({ id }) => id !== event.id)
  while (others.length >= MAX_EVENTS) {
    const ended = others.findIndex(({ state }) => state !== 'active')
    if (ended === -1)
      return { ok: false, faults: [`there are ${MAX_EVENTS} active events already: complete or cancel one`] }
    others.splice(ended, 1)
  }
  return { ok: true, value: [...others, event] }
}

function faultsOf(event: unknown): string[] {
  const names = Value.Errors(SCHEMA, event).flatMap(({ instancePath, params }) => {
    const missing = (params as { requiredProperties?: string[] }).requiredProperties
    return missing ?? [instancePath.slice(1)]
  })
  return [...new Set(names)].map((name) => {
    const { hint = 'valid' } = (SCHEMA.properties as Readonly<Record<string, { hint?: string }>>)[name] ?? {}
    return `${name} must be ${hint}`
  })
}
