/** What a region offers, read only: such as its zones and server types. The region file sets it. */
import type { Form } from './kit/forms.ts'
import { byInteger, byText } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'

export function addCatalogRoutes(parts: ResourceParts): void {
  const [zones, serverTypes] = [catalogOf(parts, NESTED.zone), catalogOf(parts, NESTED.serverType)]

  zones.list({ description: 'The zones of the region.', order: [byText('zones.handle')] })
  zones.get('By its id or handle.')
  serverTypes.list({
    description: 'The smallest first.',
    order: [byInteger('server_types.ram'), byText('server_types.id')],
  })
  serverTypes.get('By its id or handle.')
}

/** The members of a resource that is the same for all accounts. */
export function catalogOf(parts: ResourceParts, form: Form): Members {
  return new Members(parts, { form, rows: () => ({ where: form.resource.isPresent }) })
}
