/** What a region offers, read only: such as its zones and server types. The region file sets it. */
import type { ApiServer } from '../http/server.ts'
import type { Form } from './forms.ts'
import { addList, byInteger, byText, type Collection } from './lists.ts'
import { addMember, type MemberRoute } from './members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './parts.ts'

/** Adds the lists and members of zones and server types. */
export function addCatalogRoutes(server: ApiServer, parts: ResourceParts): void {
  const member = { description: 'By its id or handle.' }
  const zones = { description: 'The zones of the region.', order: [byText('zones.handle')] }
  addCatalog(server, parts, NESTED.zone, zones, member)
  const serverTypes = {
    description: 'The smallest first.',
    order: [byInteger('server_types.ram'), byText('server_types.id')],
  }
  addCatalog(server, parts, NESTED.serverType, serverTypes, member)
}

/** Adds the list and the members of a resource that is the same for all accounts. */
export function addCatalog(
  server: ApiServer,
  parts: ResourceParts,
  form: Form,
  list: Omit<Collection, 'form' | 'rows'>,
  member: Pick<MemberRoute, 'summary' | 'description'>,
): void {
  const rows = { where: form.resource.isPresent }
  addList(server, parts, { ...list, form, rows: () => rows })
  addMember(server, parts, form, { ...member, load: (db, _request, id) => form.load(db, parts.site, id, rows) })
}
