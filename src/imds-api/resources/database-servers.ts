/**
 * Database servers and their types. The region file makes them and sets their states; a client gives a database server
 * a name and a description, and maps cloud IPs to it.
 */
import type { InferResult } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import type { Reader } from '../database/transaction.ts'
import { DATABASE_SERVER_STATES } from '../model/database-server-states.ts'
import { fieldFault, noSuch, refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, byInteger, byText, equals } from './lists.ts'
import { addMember, Members } from './members.ts'
import { ACCOUNT_COLUMNS, accountOf, NESTED, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

/** The full form, which is the collected form too. */
const DatabaseServer = Type.Object(
  {
    ...NESTED.databaseServer.schema.properties,
    account: NESTED.account.schema,
    database_server_type: NESTED.databaseType.schema,
    cloud_ips: Type.Array(NESTED.cloudIp.schema),
    zone: NESTED.zone.schema,
  },
  { title: 'DatabaseServer' },
)
/**
 * The fields that only the region file sets. Some clients send them with every change, so their present values are
 * accepted.
 */
const SET_BY_REGION = ['allow_access', 'maintenance_weekday', 'maintenance_hour', 'snapshots_schedule'] as const
const Fixed = Type.Optional(Type.Unknown({ description: 'The present value: the region file sets it.' }))
const Update = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 255 })),
    description: Type.Optional(Type.Union([Type.String({ maxLength: 4096 }), Type.Null()])),
    allow_access: Fixed,
    maintenance_weekday: Fixed,
    maintenance_hour: Fixed,
    snapshots_schedule: Fixed,
  },
  { title: 'DatabaseServerChange', examples: [{ description: 'orders and stock' }] },
)

/** Adds the routes. */
export function addDatabaseServerRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, site } = parts
  const databaseServers = new Members(
    server,
    parts,
    RESOURCES.databaseServer,
    DatabaseServer,
    async (database, accountId, id) =>
      fullDatabaseServer(
        site,
        await selectDatabaseServers(database, accountId)
          .where('database_servers.id', '=', id)
          .executeTakeFirstOrThrow(() => noSuch('database server', id)),
      ),
  )

  addList(server, RESOURCES.databaseType, {
    summary: 'List types of database servers',
    description: 'The smallest first.',
    form: NESTED.databaseType.schema,
    order: [byInteger('database_server_types.ram'), byText('database_server_types.id')],
    filters: { name: equals('database_server_types.name') },
    select: () => db.selectFrom('database_server_types').selectAll(),
    represent: (rows) => rows.map((row) => NESTED.databaseType.show(site, row)),
  })

  addMember(server, db, RESOURCES.databaseType, {
    summary: 'Get a type of database servers',
    description: 'By its id.',
    form: NESTED.databaseType.schema,
    load: async (database, _request, id) => {
      const row = await database
        .selectFrom('database_server_types')
        .selectAll()
        .where('id', '=', id)
        .executeTakeFirstOrThrow(() => noSuch('database type', id))
      return NESTED.databaseType.show(site, row)
    },
  })

  addList(server, RESOURCES.databaseServer, {
    description: 'Those of the account that are not deleted. The region file makes them.',
    form: DatabaseServer,
    filters: {
      name: equals('database_servers.name'),
      status: equals('database_servers.status', { values: DATABASE_SERVER_STATES }),
    },
    select: ({ caller }) =>
      selectDatabaseServers(db, caller.accountId).where('database_servers.deleted_at', 'is', null),
    represent: (rows) => rows.map((row) => fullDatabaseServer(site, row)),
  })

  databaseServers.get('A deleted one stays readable.')
  databaseServers.update(
    {
      'x-refusals': ['not_implemented'],
      summary: 'Name a database server',
      description: 'Its name and description. Other fields may only repeat their present values (else 501).',
      body: Update,
    },
    async (tx, { accountId, id, body }) => {
      const row = await tx
        .selectFrom('database_servers')
        .selectAll()
        .where('id', '=', id)
        .where('account_id', '=', accountId)
        .forUpdate()
        .executeTakeFirstOrThrow(() => noSuch('database server', id))
      if (['deleting', 'deleted'].includes(row.status)) throw refuse('resource_conflict', `${id} is ${row.status}`)
      const present = { ...row, snapshots_schedule: null }
      const [first, ...others] = SET_BY_REGION.filter(
        (field) => body[field] !== undefined && JSON.stringify(body[field]) !== JSON.stringify(present[field]),
      ).map((field) =>
        fieldFault(field, 'unchangeable', `changes of ${field} are not implemented: the region file sets it`),
      )
      if (first !== undefined) throw refuse('not_implemented', first, ...others)
      const { name, description } = body
      const values = {
        ...(name !== undefined && { name }),
        ...(description !== undefined && { description: description ?? '' }),
      }
      if (Object.keys(values).length > 0)
        await tx
          .updateTable('database_servers')
          .set({ ...values, updated_at: new Date() })
          .where('id', '=', id)
          .execute()
    },
  )
}

function selectDatabaseServers(database: Reader, accountId: string) {
  return database
    .selectFrom('database_servers')
    .innerJoin('accounts', 'accounts.id', 'database_servers.account_id')
    .innerJoin('zones', 'zones.id', 'database_servers.zone_id')
    .innerJoin('database_server_types', 'database_server_types.id', 'database_servers.database_server_type_id')
    .selectAll('database_servers')
    .select((eb) => [
      ...ACCOUNT_COLUMNS,
      'zones.handle as zone_handle',
      eb.fn.toJson('database_server_types').as('type'),
      jsonArrayFrom(
        eb
          .selectFrom('cloud_ips')
          .select(NESTED.cloudIp.columns)
          .whereRef('cloud_ips.database_server_id', '=', 'database_servers.id')
          .orderBy('cloud_ips.id'),
      ).as('cloud_ips'),
    ])
    .where('database_servers.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectDatabaseServers>>[number]

function fullDatabaseServer(site: Site, row: Row): Static<typeof DatabaseServer> {
  return {
    ...NESTED.databaseServer.show(site, row),
    account: accountOf(site, row),
    database_server_type: NESTED.databaseType.show(site, row.type),
    cloud_ips: row.cloud_ips.map((cloudIp) => NESTED.cloudIp.show(site, cloudIp)),
    zone: NESTED.zone.show(site, { id: row.zone_id, handle: row.zone_handle }),
  }
}
