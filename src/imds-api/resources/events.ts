/** The events of an account (changes/events.ts), for which a request can wait. */
import type { FastifyRequest } from 'fastify'
import Type from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import { readEvents, startAfter, type EventRow } from '../changes/events.ts'
import type { Db } from '../database/transaction.ts'
import { QueryReader } from '../http/query.ts'
import { isId } from '../../metadata/identifiers.ts'
import { formatCursor, type Cursor } from '../model/events.ts'
import { Event, EVENT_TYPES, representEvent, type EventFilter } from './event-form.ts'
import type { ResourceParts } from './parts.ts'

const [LIMIT, MAX_LIMIT] = [100, 1_000]
const MAX_WAIT_SECONDS = 60

const Query = Type.Object({
  after: Type.Optional(
    Type.String({
      description: 'The id of the last event that the client has, or now. Default: all events that are kept.',
    }),
  ),
  type: Type.Optional(Type.Enum(EVENT_TYPES, { description: 'Only events of resources of this type.' })),
  resource: Type.Optional(Type.String({ description: 'Only events of the resource with this id.' })),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, description: `Default: ${LIMIT}.` })),
  wait: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_WAIT_SECONDS,
      description: 'Seconds to wait for an event if there is none. Default: not at all.',
    }),
  ),
})

export function addEventRoutes({ server, db, waits }: ResourceParts): void {
  server.get(
    '/events',
    {
      schema: {
        operationId: 'listEvents',
        'x-refusals': ['gone', 'too_many_requests'],
        'x-headers': ['Link'],
        summary: 'List events, or wait for them',
        description:
          'One event for each change of a resource of the account, in the order of the commits; kept for 7 days. ' +
          'With wait: responds as soon as there is one, or with none after that time.',
        tags: ['Events'],
        querystring: Query,
        response: {
          200: Type.Array(Event),
        },
      },
      validatorCompiler: () => () => true, // QueryReader checks them: in a query, numbers are text
    },
    async (request, reply) => {
      const { accountId } = callerOf(request)
      const query = new QueryReader(request.query)
      const [after, limit = LIMIT] = [query.text('after'), query.integer('limit', MAX_LIMIT)]
      const seconds = query.integer('wait', MAX_WAIT_SECONDS)
      const filter = readFilter(query)
      query.end()
      const start = await startAfter(db, accountId, after)
      const cursor = formatCursor(start)
      const read = () => readPage(db, accountId, cursor, filter, limit)
      let page = await read()
      if (page.events.length === 0 && seconds !== undefined)
        await waits.until(request, reply, { name: accountId, seconds }, async () => {
          page = await read()
          return page.events.length > 0 || undefined
        })
      return reply.header('Link', linkTo(request, page.next)).send(page.events.map(representEvent))
    },
  )
}

function readFilter(query: QueryReader): EventFilter {
  const type = query.text('type') === undefined ? undefined : query.oneOf('type', EVENT_TYPES)
  const resource = query.text('resource')
  if (resource !== undefined && !isId(resource)) query.fault('resource', 'malformed', 'must be the id of a resource')
  return { type, resource }
}

/**
 * The events after a cursor that pass a filter. Refuses (410) if events after the cursor have been deleted. `next`: the
 * cursor of the last one; if there are no more, of the newest event, so that with a filter too it gets no older.
 */
async function readPage(
  db: Db,
  accountId: string,
  cursor: string,
  { type, resource }: EventFilter,
  limit: number,
): Promise<{ readonly events: readonly EventRow[]; readonly next: Cursor }> {
  const isAll = type === undefined && resource === undefined
  const wanted = isAll ? undefined : { types: type === undefined ? EVENT_TYPES : [type], resource }
  const { epoch, number, last } = await startAfter(db, accountId, cursor)
  const events = await readEvents(db, accountId, number, limit, wanted)
  await startAfter(db, accountId, cursor) // none of these may have been deleted meanwhile
  const final = events.at(-1)?.id ?? number
  return { events, next: { epoch, number: events.length < limit ? Math.max(final, last) : final } }
}

/** The events after these, now or later. Without a host: a client can send any Host. */
function linkTo({ query }: FastifyRequest, next: Cursor): string {
  const parameters = new URLSearchParams(query as Record<string, string>)
  parameters.set('after', formatCursor(next))
  return `<?${parameters.toString()}>; rel="next"`
}
