/** What a region offers, read only: zones and server types. The region file sets them. */
import type { ApiServer } from '../http/server.ts'
import { noSuch } from '../model/refusal.ts'
import { SERVER_TYPE_STATES } from '../model/server-type-states.ts'
import { addList, byInteger, byText, equals } from './lists.ts'
import { addMember } from './members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

/** Adds the lists and members of zones and server types. */
export function addCatalogRoutes(server: ApiServer, { db, site }: ResourceParts): void {
  addList(server, RESOURCES.zone, {
    description: 'The zones of the region.',
    form: NESTED.zone.schema,
    order: [byText('zones.handle')],
    filters: {},
    select: () => db.selectFrom('zones').selectAll().where('removed_at', 'is', null),
    represent: (rows) => rows.map((row) => NESTED.zone.show(site, row)),
  })
  addMember(server, db, RESOURCES.zone, {
    description: 'By its id or handle.',
    form: NESTED.zone.schema,
    load: async (database, _request, id) => {
      const row = await database
        .selectFrom('zones')
        .selectAll()
        .where('removed_at', 'is', null)
        .where((where) => where.or([where('id', '=', id), where('handle', '=', id)]))
        .executeTakeFirstOrThrow(() => noSuch('zone', id))
      return NESTED.zone.show(site, row)
    },
  })

  addList(server, RESOURCES.serverType, {
    description: 'The smallest first.',
    form: NESTED.serverType.schema,
    order: [byInteger('server_types.ram'), byText('server_types.id')],
    filters: {
      name: equals('server_types.name'),
      status: equals('server_types.status', { values: SERVER_TYPE_STATES }),
    },
    select: () => db.selectFrom('server_types').selectAll().where('removed_at', 'is', null),
    represent: (rows) => rows.map((row) => NESTED.serverType.show(site, row)),
  })
  addMember(server, db, RESOURCES.serverType, {
    description: 'By its id or handle.',
    form: NESTED.serverType.schema,
    load: async (database, _request, id) => {
      const row = await database
        .selectFrom('server_types')
        .selectAll()
        .where('removed_at', 'is', null)
        .where((where) => where.or([where('id', '=', id), where('handle', '=', id)]))
        .executeTakeFirstOrThrow(() => noSuch('server type', id))
      return NESTED.serverType.show(site, row)
    },
  })
}
