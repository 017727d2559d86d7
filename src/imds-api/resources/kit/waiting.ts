/** `GET .../ID/wait`: responds when a resource has a state. member-waits.ts has the requests that wait. */
import Type from 'typebox'
import { callerOf } from '../../auth/account-choice.ts'
import { markIdle } from '../../http/connections.ts'
import { QueryReader } from '../../http/query.ts'
import { refuse } from '../../model/refusal.ts'
import type { Members, Shown } from './members.ts'
import type { RouteParts } from './parts.ts'

const [TIMEOUT_SECONDS, MAX_TIMEOUT] = [60, 120]

/** Adds the route. `canBecome`: whether a state can follow another, at once or later. */
export function addWait<State extends string>(
  members: Members,
  { db, waits }: Pick<RouteParts, 'db' | 'waits'>,
  canBecome: (from: State, to: State) => boolean,
): void {
  const { name, noun, states: all } = members.resource
  const states = all as readonly State[]
  members.route(
    'GET',
    `${members.path}/wait`,
    {
      operationId: `waitFor${name}`,
      'x-refusals': ['request_timeout', 'resource_conflict', 'too_many_requests'],
      summary: `Wait for a state of ${noun}`,
      description:
        'Responds as the GET of it does, as soon as it has the status. 409: it cannot have that status any more. ' +
        '408: it does not have it yet after the timeout, or imds-api stops: ask again to wait longer.',
      querystring: Type.Object({
        status: Type.Enum([...states], { description: 'The status to wait for.' }),
        timeout: Type.Optional(
          Type.Integer({
            minimum: 1,
            maximum: MAX_TIMEOUT,
            description: `Seconds. Default: ${TIMEOUT_SECONDS}.`,
          }),
        ),
      }),
      options: { validatorCompiler: () => () => true }, // QueryReader checks them: in a query, numbers are text
    },
    async ({ request, reply, id }) => {
      const { accountId, requesterId } = callerOf(request)
      const query = new QueryReader(request.query)
      const wanted = query.oneOf('status', states)
      const seconds = query.integer('timeout', MAX_TIMEOUT) ?? TIMEOUT_SECONDS
      query.end()
      let seen = ''
      const isReached = (shown: Shown) => {
        const { id, status } = shown as Shown & { readonly status: State }
        seen = status
        if (status === wanted) return true
        if (canBecome(status, wanted)) return false
        throw refuse('resource_conflict', `${id} is ${status}: it cannot become ${wanted}`)
      }
      const first = await members.load(db, request, id)
      request.leaveShare?.()
      if (isReached(first)) return members.complete(first)
      const sinceMs = performance.now()
      markIdle(reply.raw)
      const reached = await waits.until({
        accountId,
        requesterId,
        resourceId: first.id, // the path may have a handle
        socket: request.raw.socket,
        timeoutMs: seconds * 1_000,
        read: (db) => members.load(db, request, first.id),
        isReached,
        checkRight: () => request.checkAccess(),
        timeoutRefusal: () =>
          refuse(
            'request_timeout',
            `${first.id} is still ${seen} after ${((performance.now() - sinceMs) / 1_000).toFixed()} s: ask again to wait longer`,
          ),
      })
      return members.complete(reached)
    },
  )
}
