/** What a client sees of an event: the form of this cloud's interface, with some extensions. */
import Type, { type Static } from 'typebox'
import type { EventRow } from '../changes/events.ts'
import { formatCursor } from '../model/events.ts'
import { ALL_ROWS } from '../model/resources.ts'
import { formatTime } from '../model/time.ts'
import { keyOf, type ResourceKey } from './kit/affected.ts'
import type { Representation, Site } from './kit/forms.ts'
import { nullable, Time } from './kit/schemas.ts'

const Nested = Type.Object(
  { id: Type.String(), resource_type: Type.String(), url: Type.String({ format: 'uri' }) },
  { title: 'NestedResource', additionalProperties: true },
)
export const Event = Type.Object(
  {
    id: Type.String({ description: 'The cursor of the event, for after.' }),
    resource_type: Type.Literal('event'),
    url: Type.String({ format: 'uri' }),
    action: Type.Enum(['create', 'update', 'delete']),
    message: Type.String({ description: 'What has changed, and by whom, for people.' }),
    short_message: Type.String(),
    created_at: Time,
    affects: Type.Array(Nested, {
      description: 'The resources whose GET the change has changed: itself first, at most 1,000.',
    }),
    resource: Nested,
    client: nullable(Nested, { description: 'The API client that made the change.' }),
    user: nullable(Nested, { description: 'The user who made the change.' }),
    fields: Type.Array(Type.String(), {
      description: 'An extension. The names of the fields that an update changed.',
    }),
    request_id: nullable(
      Type.String({ description: 'An extension. X-Request-Id of the request that made the change.' }),
    ),
    idempotency_key: nullable(Type.String({ description: 'An extension. The Idempotency-Key of that request.' })),
  },
  { title: 'Event' },
)

const DONE = { create: 'created', update: 'updated', delete: 'deleted' } as const
/** Who makes changes, besides API clients and users. */
const ACTORS: Readonly<Record<string, string>> = {
  system: 'the region',
  operator: 'an operator',
  invitee: 'the invited person',
}

/** The API client or user who has made a change. */
export function actorOf({ actor }: Pick<EventRow, 'actor'>): ResourceKey | undefined {
  const [type] = typesOf(actor)
  return type === undefined ? undefined : { type, id: actor }
}

/** The types of events that a resource with this id may have. */
export function typesOf(id: string): readonly string[] {
  return ALL_ROWS.filter(({ prefix }) => id.startsWith(`${prefix}-`)).map(({ type }) => type)
}

/** `nested`: the nested forms of resources by `keyOf`; the others are shown by their ids alone. */
export function representEvent(
  site: Site,
  row: EventRow,
  affects: readonly ResourceKey[],
  nested: ReadonlyMap<string, Representation>,
): Static<typeof Event> {
  const { id: number, epoch, type, resource, action, actor, fields, request_id, idempotency_key } = row
  const show = (one: ResourceKey) => nested.get(keyOf(one)) ?? reference(site, one)
  const by = actorOf(row)
  const id = formatCursor({ epoch, number })
  const short = `${wordsOf(type)} ${DONE[action]}`
  const names = fields.length === 0 ? '' : `: ${fields.join(', ')}`
  return {
    ...{ id, resource_type: 'event', url: `${site.baseUrl}/1.0/events/${id}`, action },
    message: `${short.replace(` ${DONE[action]}`, ` ${resource} was ${DONE[action]}`)} by ${ACTORS[actor] ?? actor}${names}`,
    short_message: short,
    created_at: formatTime(row.created_at),
    affects: affects.map(show),
    resource: show({ type, id: resource }),
    client: by?.type === 'api_client' ? show(by) : null,
    user: by?.type === 'user' ? show(by) : null,
    ...{ fields, request_id, idempotency_key },
  } as Static<typeof Event>
}

function reference({ baseUrl }: Site, { type, id }: ResourceKey): Representation & { readonly url: string } {
  const { path, table } = ALL_ROWS.find((one) => one.type === type)!
  return { id, resource_type: type, url: `${baseUrl}/1.0/${path ?? table!}/${id}` }
}

function wordsOf(type: string): string {
  const { kind } = ALL_ROWS.find((one) => one.type === type)!
  return kind.charAt(0).toUpperCase() + kind.slice(1)
}
