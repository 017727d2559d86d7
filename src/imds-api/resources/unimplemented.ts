/**
 * Resources of the API that imds-api does not implement. Clients list them, so each list is empty; a member does not
 * exist (404), and a change is not implemented (501). Database servers exist, but most changes of them are not
 * implemented either.
 */
import Type from 'typebox'
import { notFound, refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'

const EMPTY = ['load_balancers', 'database_snapshots', 'firewall_policies', 'firewall_rules', 'volumes'] as const
const UNCHANGEABLE = [...EMPTY, 'database_servers', 'database_types'] as const

/** Adds the routes. */
export function addUnimplementedRoutes(server: ApiServer): void {
  const hidden = { hide: true }
  for (const collection of EMPTY) {
    server.get(`/${collection}`, { schema: { ...hidden, response: { 200: Type.Array(Type.Object({})) } } }, () =>
      Promise.resolve([]),
    )
    server.get(
      `/${collection}/:id`,
      { schema: { ...hidden, params: Type.Object({ id: Type.String() }) } },
      ({ params: { id } }) => {
        throw notFound(id)
      },
    )
  }
  for (const collection of UNCHANGEABLE) {
    const refusal = refuse('not_implemented', `changes of ${collection.replaceAll('_', ' ')} are not implemented`)
    const handler = () => {
      throw refusal
    }
    server.post(`/${collection}`, { schema: hidden }, handler)
    for (const method of ['POST', 'PUT', 'DELETE'] as const) {
      server.route({
        method,
        url: `/${collection}/*`,
        schema: hidden,
        handler,
      })
    }
  }
}
