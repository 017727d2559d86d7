/** `GET .../ID/wait`: responds when a resource has a state. waits.ts has the requests that wait. */
import Type from 'typebox'
import { QueryReader } from '../../http/query.ts'
import { refuse } from '../../model/refusal.ts'
import type { Representation } from './forms.ts'
import type { Members } from './members.ts'
import type { ResourceParts } from './parts.ts'

const [TIMEOUT_SECONDS, MAX_TIMEOUT] = [60, 120]

/** Adds the route. `canBecome`: whether a state can follow another, at once or later. */
export function addWait<State extends string>(
  members: Members,
  { db, waits }: Pick<ResourceParts, 'db' | 'waits'>,
  canBecome: (from: State, to: State) => boolean,
): void {
  const { name, noun, states: all } = members.resource
  const states = all as readonly State[]
  members.route(
    'GET',
    `${members.path}/wait`,
    'Wait for',
    {
      operationId: `waitFor${name}`,
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
    async ({ request, id }) => {
      const query = new QueryReader(request.query)
      const wanted = query.oneOf('status', states)
      const seconds = query.integer('timeout', MAX_TIMEOUT) ?? TIMEOUT_SECONDS
      query.end()
      let last = await members.load(db, request, id)
      const { id: name } = last // the path may have a handle
      const isReached = () => {
        const { status } = last as Representation & { readonly status: State }
        if (status === wanted || canBecome(status, wanted)) return status === wanted
        throw refuse('resource_conflict', `${name} is ${status}: it cannot become ${wanted}`)
      }
      if (!isReached()) {
        const sinceMs = performance.now()
        const reached = await waits.until(request, { name, seconds }, async () => {
          last = await members.load(db, request, name)
          return isReached() || undefined
        })
        const { status } = last as Representation & { readonly status: State }
        const after = `after ${((performance.now() - sinceMs) / 1_000).toFixed()} s: ask again to wait longer`
        if (reached === undefined) throw refuse('request_timeout', `${name} is still ${status} ${after}`)
      }
      return last
    },
  )
}
