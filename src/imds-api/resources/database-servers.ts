/**
 * Database servers and their types. The region file makes them and sets their states; a client gives a database server
 * a name and a description, and maps cloud IPs to it.
 */
import { sql } from 'kysely'
import Type from 'typebox'
import { lockRow, setValues } from '../changes/own-rows.ts'
import { fieldFault, refuse, refuseAny } from '../model/refusal.ts'
import { catalogOf } from './catalog.ts'
import { Form, linked, linkedAll } from './kit/forms.ts'
import { byInteger, byText } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { ACCOUNT, NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenDescription, givenTexts } from './kit/schemas.ts'

/** The full form, which is the collected form too. */
const DatabaseServer = new Form('databaseServer', {
  ...NESTED.databaseServer.fields,
  description: Type.String(),
  account: ACCOUNT,
  database_server_type: linked(
    NESTED.databaseType,
    sql`database_server_types.id = database_servers.database_server_type_id`,
  ),
  cloud_ips: linkedAll(NESTED.cloudIp, sql`where cloud_ips.database_server_id = database_servers.id`),
  zone: linked(NESTED.zone, sql`zones.id = database_servers.zone_id`),
})
/**
 * The fields that only the region file sets. Some clients send them with every change, so their present values are
 * accepted.
 */
const SET_BY_REGION = ['allow_access', 'maintenance_weekday', 'maintenance_hour', 'snapshots_schedule'] as const
const Fixed = Type.Unknown({ description: 'The present value: the region file sets it.' })
const Update = Type.Partial(
  Type.Object({
    name: Type.String({ maxLength: 255 }),
    description: GivenDescription,
    allow_access: Fixed,
    maintenance_weekday: Fixed,
    maintenance_hour: Fixed,
    snapshots_schedule: Fixed,
  }),
  { title: 'DatabaseServerChange', examples: [{ description: 'orders and stock' }] },
)

export function addDatabaseServerRoutes(parts: ResourceParts): void {
  const types = catalogOf(parts, NESTED.databaseType)
  const databaseServers = new Members(parts, { form: DatabaseServer })

  types.list({
    summary: 'List types of database servers',
    description: 'The smallest first.',
    order: [byInteger('database_server_types.ram'), byText('database_server_types.id')],
  })
  types.get('By its id.', { summary: 'Get a type of database servers' })
  databaseServers.list({ description: 'Those of the account that are not deleted. The region file makes them.' })
  databaseServers.get('A deleted one stays readable.')
  databaseServers.update(
    {
      summary: 'Name a database server',
      description: 'Its name and description. Other fields may only repeat their present values (else 501).',
      body: Update,
    },
    async ({ tx, accountId, id, body }) => {
      const row = await lockRow(tx, 'databaseServer', accountId, id)
      if (['deleting', 'deleted'].includes(row.status)) throw refuse('resource_conflict', `${id} is ${row.status}`)
      const present = { ...row, snapshots_schedule: null }
      const changed = SET_BY_REGION.filter(
        (field) => body[field] !== undefined && JSON.stringify(body[field]) !== JSON.stringify(present[field]),
      )
      refuseAny(
        'not_implemented',
        changed.map((field) =>
          fieldFault(field, 'unchangeable', `changes of ${field} are not implemented: the region file sets it`),
        ),
      )
      const values = givenTexts({ name: body.name, description: body.description })
      if (Object.keys(values).length > 0)
        await setValues(tx, 'database_servers', id, { ...values, updated_at: new Date() })
    },
  )
}
