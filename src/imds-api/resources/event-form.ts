/** What a client sees of an event, and which events it asks for. */
import Type, { type Static } from 'typebox'
import type { EventRow } from '../changes/events.ts'
import { formatCursor } from '../model/events.ts'
import { ALL_ROWS } from '../model/resources.ts'
import { formatTime } from '../model/time.ts'
import { nullable } from './kit/schemas.ts'

/** The types of resources that have events. database/event-triggers.ts has their triggers. */
export const EVENT_TYPES = [
  'account_identity',
  ...ALL_ROWS.filter(({ events }) => events).map(({ type }) => type),
].sort()
export const Event = Type.Object(
  {
    id: Type.String({ description: 'The cursor of the event, for after.' }),
    type: Type.Enum(EVENT_TYPES, { description: 'The resource_type of the resource.' }),
    resource: Type.String({ description: 'The id of the resource; of an account_identity, that of its account.' }),
    action: Type.Enum(['create', 'update', 'delete']),
    actor: Type.String({
      description:
        'The id of the API client or user; operator: of the region; invitee: the person who rejected an invitation; system: the region itself.',
    }),
    time: Type.String({ description: 'When the change was made: UTC, such as 2026-11-20T15:04:05Z.' }),
    fields: Type.Array(Type.String(), { description: 'The names of the fields that an update changed.' }),
    request_id: nullable(Type.String({ description: 'X-Request-Id of the request that made the change.' })),
    idempotency_key: nullable(Type.String({ description: 'The Idempotency-Key of that request.' })),
  },
  { title: 'Event' },
)

/** The events that a client asks for: those of a type, of a resource, or both. Undefined: of all. */
export interface EventFilter {
  readonly type: string | undefined
  readonly resource: string | undefined
}

export function representEvent(row: EventRow): Static<typeof Event> {
  const { epoch, id: number, type, resource, action, actor, created_at, ...others } = row
  return {
    id: formatCursor({ epoch, number }),
    ...{ type, resource, action, actor },
    time: formatTime(created_at),
    ...others,
  }
}
