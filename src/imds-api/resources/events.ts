/** The events of an account (changes/events.ts), for which a request can wait. */
import type { FastifyRequest } from 'fastify'
import Type, { type Static } from 'typebox'
import { accountOf } from '../auth/caller.ts'
import { MAX_KEPT_EVENTS, readEvents, startAfter, type EventRow } from '../changes/events.ts'
import { QueryReader } from '../http/query.ts'
import { formatCursor, parseCursor } from '../model/events.ts'
import { notFound } from '../model/refusal.ts'
import { actorOf, Event, representEvent, typesOf } from './event-form.ts'
import type { ResourceKey } from './kit/affected.ts'
import type { ResourceParts } from './kit/parts.ts'

const [LIMIT, MAX_LIMIT] = [100, 1_000]
const MAX_WAIT_SECONDS = 60
/** A page ends earlier with the event by which its events affect so many resources. */
const MAX_AFFECTED = 2_000
/** Events whose affected resources are read at once. */
const ROWS_AT_ONCE = 20

const Query = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_LIMIT, description: `Default: ${LIMIT}.` })),
  offset: Type.Optional(
    Type.Integer({ minimum: 0, maximum: MAX_KEPT_EVENTS, description: 'Without the newest ones. Default: 0.' }),
  ),
  resource_id: Type.Optional(Type.String({ description: 'Only events of the resource with this id.' })),
  nested: Type.Optional(
    Type.Boolean({ description: 'true: with the nested forms of resources, not only their ids. Default: false.' }),
  ),
  after: Type.Optional(
    Type.String({
      description:
        'An extension. The events after the one with this id, in the order of the commits; now: those that follow.',
    }),
  ),
  wait: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_WAIT_SECONDS,
      description: 'An extension. Seconds to wait for an event if there is none. Default: not at all.',
    }),
  ),
})
type Given = ReturnType<typeof readQuery>
/** `link`: the parameters of the next page; undefined: there is none. */
interface Page {
  readonly events: readonly Static<typeof Event>[]
  readonly link: Readonly<Record<string, string>> | undefined
}

export function addEventRoutes({ server, db, site, waits, affected }: ResourceParts): void {
  const about = { tags: ['Events'] }
  server.get(
    '/events',
    {
      schema: {
        ...about,
        operationId: 'listEvents',
        'x-headers': ['Link'],
        summary: 'List events, or wait for them',
        description:
          'One event for each change of a resource of the account, kept for 7 days: the newest first. ' +
          'With wait: responds as soon as there is one, or with none after that time.',
        querystring: Query,
        response: { 200: Type.Array(Event) },
      },
      validatorCompiler: () => () => true, // QueryReader checks them: in a query, numbers are text
    },
    async (request, reply) => {
      const accountId = accountOf(request)
      const given = readQuery(request.query)
      const after = given.after === undefined ? undefined : formatCursor(await startAfter(db, accountId, given.after))
      const read = () => (after === undefined ? readNewest(request, given) : readAfter(request, given, after))
      let page = await read()
      if (page.events.length === 0 && given.wait !== undefined)
        await waits.until(request, { name: accountId, seconds: given.wait }, async () => {
          page = await read()
          return page.events.length > 0 || undefined
        })
      if (page.link !== undefined) void reply.header('Link', linkTo(request, page.link))
      return reply.send([...page.events])
    },
  )
  server.get(
    '/events/:id',
    {
      schema: {
        ...about,
        operationId: 'getEvent',
        summary: 'Get an event',
        description: 'One that is kept.',
        params: Type.Object({ id: Type.String({ description: 'The id.', examples: ['0f3a9c21-1'] }) }),
        response: { 200: Event },
      },
    },
    async (request) => {
      const { id } = request.params
      const number = parseCursor(id)?.number ?? 0
      const [row] = await readEvents(db, accountOf(request), { after: number - 1, limit: 1 })
      const [event] = await represent(request, row === undefined ? [] : [row], true)
      if (event?.id !== id) throw notFound(`the event ${id}`)
      return event
    },
  )

  async function readNewest(request: FastifyRequest, { offset = 0, ...given }: Given): Promise<Page> {
    const rows = await readEvents(db, accountOf(request), { ...given, after: undefined, offset })
    const events = await represent(request, rows, given.nested)
    const isLast = events.length === rows.length && rows.length < given.limit
    return { events, link: isLast ? undefined : { offset: String(offset + events.length) } }
  }

  /** Refuses (410) if events after the cursor have been deleted. The link is for later events, if there are no more. */
  async function readAfter(request: FastifyRequest, { offset: _, ...given }: Given, cursor: string): Promise<Page> {
    const accountId = accountOf(request)
    const { epoch, number, last } = await startAfter(db, accountId, cursor)
    const rows = await readEvents(db, accountId, { ...given, after: number })
    await startAfter(db, accountId, cursor) // none of these may have been deleted meanwhile
    const events = await represent(request, rows, given.nested)
    const final = rows[events.length - 1]?.id ?? number
    // of one resource too, so that the cursor gets no older than the newest event
    const isLast = events.length === rows.length && rows.length < given.limit
    return { events, link: { after: formatCursor({ epoch, number: isLast ? Math.max(final, last) : final }) } }
  }

  /** The first ones, until they affect MAX_AFFECTED. */
  async function represent(request: FastifyRequest, rows: readonly EventRow[], isNested: boolean) {
    const events: Static<typeof Event>[] = []
    for (let left = MAX_AFFECTED; events.length < rows.length && left > 0;) {
      const next = rows.slice(events.length, events.length + ROWS_AT_ONCE)
      const affects = await affected.of(db, request, next)
      const some: EventRow[] = []
      const all: ResourceKey[] = []
      for (let i = 0; i < next.length && left > 0; i++) {
        const row = next[i]!
        some.push(row)
        left -= affects[i]!.length
        if (isNested) all.push(...affects[i]!, ...[actorOf(row) ?? []].flat())
      }
      const nested = await affected.nested(db, site, request, all)
      events.push(...some.map((row, i) => representEvent(site, row, affects[i]!, nested)))
    }
    return events
  }
}

function readQuery(given: unknown) {
  const query = new QueryReader(given)
  const id = query.text('resource_id')
  const resources = id === undefined ? undefined : typesOf(id).map((type) => `${type} ${id}`)
  if (resources?.length === 0) query.fault('resource_id', 'malformed', 'must be the id of a resource')
  const isNested = query.text('nested') === undefined ? 'false' : query.oneOf('nested', ['true', 'false'])
  const read = {
    limit: query.integer('limit', MAX_LIMIT) ?? LIMIT,
    offset: query.integer('offset', MAX_KEPT_EVENTS, 0),
    resources,
    nested: isNested === 'true',
    after: query.text('after'),
    wait: query.integer('wait', MAX_WAIT_SECONDS),
  }
  query.end()
  return read
}

/** With the same parameters. Without a host: a client can send any Host. */
function linkTo({ query }: FastifyRequest, changed: Readonly<Record<string, string>>): string {
  const parameters = new URLSearchParams({ ...(query as Record<string, string>), ...changed })
  return `<?${parameters.toString()}>; rel="next"`
}
