/** What a region offers, read only: such as its zones and server types. The region file sets it. */
import type { ApiServer } from '../http/server.ts'
import type { Form } from './kit/forms.ts'
import { byInteger, byText } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './parts.ts'

/** Adds the lists and members of zones and server types. */
export function addCatalogRoutes(server: ApiServer, parts: ResourceParts): void {
  const [zones, serverTypes] = [catalogOf(server, parts, NESTED.zone), catalogOf(server, parts, NESTED.serverType)]

  zones.list({ description: 'The zones of the region.', order: [byText('zones.handle')] })
  zones.get('By its id or handle.')
  serverTypes.list({
    description: 'The smallest first.',
    order: [byInteger('server_types.ram'), byText('server_types.id')],
  })
  serverTypes.get('By its id or handle.')
}

/** The members of a resource that is the same for all accounts. */
export function catalogOf(server: ApiServer, parts: ResourceParts, form: Form): Members {
  return new Members(server, parts, { form, rows: () => ({ where: form.resource.isPresent }) })
}
