/** What a region offers, read only: zones and server types. The region file sets them. */
import type { ApiServer } from '../http/server.ts'
import { noSuch } from '../model/refusal.ts'
import { listOf, NestedServerType, nestedServerType, NestedZone, nestedZone, idParams } from './nested.ts'
import type { ResourceParts } from './parts.ts'

const ZoneParams = idParams('gb1-a', 'The id, or the handle.')
const TypeParams = idParams('1gb.ssd', 'The id, or the handle.')

/** Adds the lists and members of zones and server types. */
export function addCatalogRoutes(server: ApiServer, { db, site }: ResourceParts): void {
  server.get(
    '/zones',
    {
      schema: {
        operationId: 'listZones',
        summary: 'List zones',
        description: 'The zones of the region.',
        tags: ['Zones'],
        response: { 200: listOf(NestedZone) },
      },
    },
    async () =>
      (await db.selectFrom('zones').selectAll().where('removed_at', 'is', null).orderBy('handle').execute()).map(
        (row) => nestedZone(site, row),
      ),
  )
  server.get(
    '/zones/:id',
    {
      schema: {
        operationId: 'getZone',
        summary: 'Get a zone',
        description: 'By its id or handle.',
        tags: ['Zones'],
        params: ZoneParams,
        response: { 200: NestedZone },
      },
    },
    async ({ params: { id } }) => {
      const row = await db
        .selectFrom('zones')
        .selectAll()
        .where('removed_at', 'is', null)
        .where((where) => where.or([where('id', '=', id), where('handle', '=', id)]))
        .executeTakeFirst()
      if (row === undefined) throw noSuch('zone', id)
      return nestedZone(site, row)
    },
  )

  server.get(
    '/server_types',
    {
      schema: {
        operationId: 'listServerTypes',
        summary: 'List server types',
        description: 'The smallest first.',
        tags: ['Server types'],
        response: { 200: listOf(NestedServerType) },
      },
    },
    async () =>
      (
        await db
          .selectFrom('server_types')
          .selectAll()
          .where('removed_at', 'is', null)
          .orderBy('ram')
          .orderBy('id')
          .execute()
      ).map((row) => nestedServerType(site, row)),
  )
  server.get(
    '/server_types/:id',
    {
      schema: {
        operationId: 'getServerType',
        summary: 'Get a server type',
        description: 'By its id or handle.',
        tags: ['Server types'],
        params: TypeParams,
        response: { 200: NestedServerType },
      },
    },
    async ({ params: { id } }) => {
      const row = await db
        .selectFrom('server_types')
        .selectAll()
        .where('removed_at', 'is', null)
        .where((where) => where.or([where('id', '=', id), where('handle', '=', id)]))
        .executeTakeFirst()
      if (row === undefined) throw noSuch('server type', id)
      return nestedServerType(site, row)
    },
  )
}
