/** Interfaces of servers, read only. */
import { sql } from 'kysely'
import { accountOf } from '../auth/caller.ts'
import { Form, linked } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'

const Interface = new Form('interface', {
  ...NESTED.interface.fields,
  server: linked(NESTED.server, sql`servers.id = interfaces.server_id`),
})

export function addInterfaceRoutes(parts: ResourceParts): void {
  const interfaces = new Members(parts, {
    form: Interface,
    rows: (request) => ({
      where: sql`interfaces.server_id in (select servers.id from servers where servers.account_id = ${accountOf(request)})`,
    }),
  })

  interfaces.get('A network interface of a server of the account.')
}
