/**
 * Resources of the API that imds-api does not implement. Clients list them, so each list is empty; a member does not
 * exist (404), and a change is not implemented (501). Database servers exist, but most changes of them are not
 * implemented either.
 */
import Type from 'typebox'
import { notFound, refuse } from '../model/refusal.ts'
import { ALL_ROWS } from '../model/resources.ts'
import type { ResourceParts } from './kit/parts.ts'

export function addUnimplementedRoutes({ server }: ResourceParts): void {
  const hidden = { hide: true }
  for (const { table, path = table!, unimplemented } of ALL_ROWS) {
    if (unimplemented === undefined) continue
    if (unimplemented === 'all') {
      server.get(`/${path}`, { schema: { ...hidden, response: { 200: Type.Array(Type.Object({})) } } }, () =>
        Promise.resolve([]),
      )
      server.get(
        `/${path}/:id`,
        { schema: { ...hidden, params: Type.Object({ id: Type.String() }) } },
        ({ params: { id } }) => {
          throw notFound(id)
        },
      )
    }
    const refusal = refuse('not_implemented', `changes of ${path.replaceAll('_', ' ')} are not implemented`)
    const handler = () => {
      throw refusal
    }
    server.post(`/${path}`, { schema: hidden }, handler)
    server.route({ method: ['POST', 'PUT', 'DELETE'], url: `/${path}/*`, schema: hidden, handler })
  }
  server.post('/servers/:id/resize', { schema: hidden }, () => {
    throw refuse('not_implemented', 'servers cannot be resized: create one of another type')
  })
}
