/** The events of an account (changes/events.ts): as a list, and as a stream for clients that accept it. */
import type { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import { isContiguous, goneRefusal, readEvents, startAfter } from '../changes/events.ts'
import { QueryReader } from '../http/query.ts'
import { formatCursor, type Cursor } from '../model/events.ts'
import { Refusal } from '../model/refusal.ts'
import { Event, representEvent } from './event-form.ts'
import type { ResourceParts } from './parts.ts'

const [LIMIT, MAX_LIMIT] = [100, 1_000]
const STREAM = 'text/event-stream'

const Stream = Type.String({ title: 'EventStream', description: 'Server-sent events. The data of each is an Event.' })
const Query = Type.Object(
  {
    after: Type.Optional(
      Type.String({
        description: 'The id of the last event that the client has, or now. Default: all events that are kept.',
      }),
    ),
    limit: Type.Optional(
      Type.Integer({ minimum: 1, maximum: MAX_LIMIT, description: `Of a list. Default: ${String(LIMIT)}.` }),
    ),
  },
  { additionalProperties: false },
)

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
      query.end()
      const last = headers['last-event-id']
      const isStream = method === 'GET' && accepts(headers.accept)
      const start = await startAfter(db, caller.accountId, isStream && typeof last === 'string' ? last : after)
      if (isStream) {
        const { accountId, requesterId } = caller
        const subscriber = {
          accountId,
          requesterId,
          mayRead: () => mayRead(request),
          enterShare: () => request.enterShare(true),
        }
        return sendStream(reply, streams.open(subscriber, start))
      }
      const events = await readEvents(db, caller.accountId, start.number, limit)
      if (!isContiguous(start, events)) throw goneRefusal()
      const final = events.at(-1)
      const next = final === undefined ? start : { epoch: final.epoch, number: final.id }
      return reply.header('Link', linkTo(request, next)).send(events.map(representEvent))
    },
  )
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
