/** The events of an account (changes/events.ts): as a list, and as a stream for clients that accept it. */
import type { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import { GONE, isContiguous, readEvents, startAfter, type EventRow } from '../changes/events.ts'
import type { Db } from '../database/transaction.ts'
import { QueryReader } from '../http/query.ts'
import { isId } from '../../metadata/identifiers.ts'
import { formatCursor, type Cursor } from '../model/events.ts'
import { Refusal } from '../model/refusal.ts'
import { Event, EVENT_TYPES, representEvent, type EventFilter } from './event-form.ts'
import type { ResourceParts } from './parts.ts'

const [LIMIT, MAX_LIMIT] = [100, 1_000]
const STREAM = 'text/event-stream'

const Stream = Type.String({ title: 'EventStream', description: 'Server-sent events. The data of each is an Event.' })
const Query = Type.Object({
  after: Type.Optional(
    Type.String({
      description: 'The id of the last event that the client has, or now. Default: all events that are kept.',
    }),
  ),
  type: Type.Optional(Type.Enum(EVENT_TYPES, { description: 'Only events of resources of this type.' })),
  resource: Type.Optional(Type.String({ description: 'Only events of the resource with this id.' })),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, description: `Of a list. Default: ${LIMIT}.` })),
})

export function addEventRoutes({ server, db, streams }: ResourceParts): void {
  server.get(
    '/events',
    {
      schema: {
        operationId: 'listEvents',
        'x-refusals': ['gone', 'too_many_requests'],
        'x-headers': ['Link'],
        summary: 'List events, or follow them',
        description:
          'One event for each change of a resource of the account, in the order of the commits; kept for 7 days. ' +
          'With Accept: text/event-stream: server-sent events without an end, and Last-Event-ID is used like after.',
        tags: ['Events'],
        querystring: Query,
        response: {
          200: {
            description: 'Events',
            content: { 'application/json': { schema: Type.Array(Event) }, [STREAM]: { schema: Stream } },
          },
        },
      },
      validatorCompiler: () => () => true, // QueryReader checks them: in a query, numbers are text
    },
    async (request, reply) => {
      const { headers, method } = request
      const caller = callerOf(request)
      const query = new QueryReader(request.query)
      const [after, limit = LIMIT] = [query.text('after'), query.integer('limit', MAX_LIMIT)]
      const filter = readFilter(query)
      query.end()
      const last = headers['last-event-id']
      const isStream = method === 'GET' && accepts(headers.accept)
      const start = await startAfter(db, caller.accountId, isStream && typeof last === 'string' ? last : after)
      if (isStream) {
        const { accountId, requesterId } = caller
        const subscriber = {
          accountId,
          requesterId,
          filter,
          mayRead: () => mayRead(request),
          enterShare: () => request.enterShare(true),
        }
        return sendStream(reply, streams.open(subscriber, start))
      }
      const events = await readPage(db, caller.accountId, start, filter, limit)
      const final = events.at(-1)?.id ?? start.number
      // with a filter too, the cursor of a client that has all gets no older than the newest event
      const next = { epoch: start.epoch, number: events.length < limit ? Math.max(final, start.last) : final }
      return reply.header('Link', linkTo(request, next)).send(events.map(representEvent))
    },
  )
}

function readFilter(query: QueryReader): EventFilter {
  const type = query.text('type') === undefined ? undefined : query.oneOf('type', EVENT_TYPES)
  const resource = query.text('resource')
  if (resource !== undefined && !isId(resource)) query.fault('resource', 'malformed', 'must be the id of a resource')
  return { type, resource }
}

/** The events after a cursor that pass a filter. Refuses (410) if events after the cursor have just been deleted. */
async function readPage(
  db: Db,
  accountId: string,
  start: Cursor,
  { type, resource }: EventFilter,
  limit: number,
): Promise<readonly EventRow[]> {
  const isAll = type === undefined && resource === undefined
  const wanted = isAll ? undefined : { types: type === undefined ? EVENT_TYPES : [type], resource }
  const events = await readEvents(db, accountId, start.number, limit, wanted)
  if (!isAll) await startAfter(db, accountId, formatCursor(start))
  else if (!isContiguous(start, events)) throw GONE
  return events
}

function sendStream(reply: FastifyReply, stream: Readable): FastifyReply {
  return reply.type(STREAM).header('X-Accel-Buffering', 'no').send(stream) // nginx would wait for more of it
}

/** True if the client prefers a stream to a list: it names that type. */
function accepts(header = ''): boolean {
  return /(?:^|,)[ \t]*text\/event-stream[ \t]*(?:[;,]|$)/i.test(header)
}

/** The events after these, now or later. Without a host: a client can send any Host. */
function linkTo({ query }: FastifyRequest, next: Cursor): string {
  const parameters = new URLSearchParams(query as Record<string, string>)
  parameters.set('after', formatCursor(next))
  return `<?${parameters.toString()}>; rel="next"`
}

/** False once the token, or the access of its user to the account, has ended. */
async function mayRead(request: FastifyRequest): Promise<boolean> {
  try {
    await request.checkAccess()
    return true
  } catch (error) {
    if (error instanceof Refusal) return false
    throw error
  }
}
