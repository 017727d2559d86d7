/** Interfaces of servers, read only. */
import Type from 'typebox'
import { noSuch } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addMember } from './members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

const Interface = Type.Object(
  { ...NESTED.interface.schema.properties, server: NESTED.server.schema },
  { title: 'Interface' },
)

/** Adds the route. */
export function addInterfaceRoutes(server: ApiServer, { db, site }: ResourceParts): void {
  addMember(server, db, RESOURCES.interface, {
    description: 'A network interface of a server of the account.',
    form: Interface,
    load: async (database, { caller }, id) => {
      const row = await database
        .selectFrom('interfaces')
        .innerJoin('servers', 'servers.id', 'interfaces.server_id')
        .select(NESTED.server.columns)
        .select(['interfaces.id as interface_id', 'interfaces.mac_address', 'interfaces.ipv4_address'])
        .where('interfaces.id', '=', id)
        .where('servers.account_id', '=', caller.accountId)
        .executeTakeFirstOrThrow(() => noSuch('interface', id))
      const { interface_id, mac_address, ipv4_address } = row
      return {
        ...NESTED.interface.show(site, { id: interface_id, mac_address, ipv4_address }),
        server: NESTED.server.show(site, row),
      }
    },
  })
}
