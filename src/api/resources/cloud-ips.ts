/**
 * Cloud IPs: public addresses of an account, which can be moved between servers.
 *
 *   unmapped --map--> mapped --unmap, or its destination is deleted--> unmapped
 *   (none), unmapped --a new server takes it--> reserved --the server is active--> mapped
 *   reserved --the server cannot be created, or is deleted--> unmapped
 */
import type { ApiServer } from '../http/server.ts'
import Type, { type Static } from 'typebox'
import { sql, type InferResult, type Selectable } from 'kysely'
import { jsonObjectFrom } from 'kysely/helpers/postgres'
import type { PortTranslator } from '../model/port-translator.ts'
import { freeCloudIp } from '../changes/allocate.ts'
import { createCloudIp, takenFault } from '../changes/cloud-ips.ts'
import { markChanged } from '../database/outbox.ts'
import { refuseBeyondRecord } from '../changes/record-limits.ts'
import { prepareOne } from '../database/prepared.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { fieldFault, noSuch, notFound, refuse } from '../model/refusal.ts'
import {
  GivenName,
  listOf,
  NestedAccount,
  nestedAccount,
  NestedCloudIp,
  nestedCloudIp,
  NestedDatabaseServer,
  nestedDatabaseServer,
  NestedInterface,
  nestedInterface,
  NestedServer,
  nestedServer,
  NestedServerGroup,
  nestedServerGroup,
  type Site,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Port = Type.Integer({ minimum: 1, maximum: 65_535 })
/** Clients send ports as text too. */
const GivenPort = Type.Union([Port, Type.String({ pattern: '^[0-9]{1,5}$', hint: 'a port from 1 to 65535' })], {
  examples: [80],
})
const Protocol = Type.Union([Type.Literal('tcp'), Type.Literal('udp')], { examples: ['tcp'] })
const PortTranslators = Type.Array(Type.Object({ protocol: Protocol, incoming: Port, outgoing: Port }))
const Update = Type.Object({
  name: Type.Optional(GivenName),
  reverse_dns: Type.Optional(
    Type.Union([Type.Null(), Type.Literal(''), Type.String({ format: 'host-name' })], {
      description: 'Null and an empty text clear it.',
    }),
  ),
  port_translators: Type.Optional(
    Type.Array(Type.Object({ protocol: Protocol, incoming: GivenPort, outgoing: GivenPort }), { maxItems: 100 }),
  ),
})
const None = Type.Null({ description: 'Always null: load balancers belong to another document of the interface.' })

/** The full form, which is the collected form too. */
const CloudIp = Type.Object(
  {
    ...NestedCloudIp.properties,
    port_translators: PortTranslators,
    account: NestedAccount,
    interface: Type.Union([NestedInterface, Type.Null()]),
    server: Type.Union([NestedServer, Type.Null()]),
    server_group: Type.Union([NestedServerGroup, Type.Null()]),
    load_balancer: None,
    database_server: Type.Union([NestedDatabaseServer, Type.Null()]),
  },
  { title: 'CloudIp' },
)

const TAGS = ['Cloud IPs']
const Params = Type.Object({ id: Type.String() })

/** Adds the seven endpoints. */
export function addCloudIpRoutes(server: ApiServer, { db, pool, accounts, site }: ResourceParts): void {
  const find = prepareOne(pool, 'cloud-ip', ['account', 'id'], (accountId, id) =>
    selectCloudIps(db, accountId).where('cloud_ips.id', '=', id),
  )
  server.get(
    '/cloud_ips',
    { schema: { summary: 'List cloud IPs', tags: TAGS, response: { 200: listOf(CloudIp) } } },
    async ({ caller }) =>
      (
        await selectCloudIps(db, caller.accountId).orderBy('cloud_ips.created_at').orderBy('cloud_ips.id').execute()
      ).map((row) => represent(site, row)),
  )

  server.get(
    '/cloud_ips/:id',
    { schema: { summary: 'Get a cloud IP', tags: TAGS, params: Params, response: { 200: CloudIp } } },
    async ({ caller, params: { id } }) => {
      const row = await find(caller.accountId, id)
      if (row === undefined) throw noSuch('cloud IP', id)
      return represent(site, row)
    },
  )

  server.post(
    '/cloud_ips',
    { schema: { summary: 'Create a cloud IP', tags: TAGS, body: Update, response: { 201: CloudIp } } },
    async ({ caller, body }, reply) =>
      reply.code(201).send(
        await accounts.commit(caller, async (tx) => {
          const values = valuesOf(body)
          const id = await createCloudIp(tx, caller.accountId)
          if (Object.keys(values).length > 0)
            await tx.updateTable('cloud_ips').set(values).where('id', '=', id).execute()
          return load(tx, site, caller.accountId, id)
        }),
      ),
  )

  server.put(
    '/cloud_ips/:id',
    { schema: { summary: 'Change a cloud IP', tags: TAGS, params: Params, body: Update, response: { 200: CloudIp } } },
    async ({ caller, params, body }) =>
      await accounts.commit(caller, async (tx) => {
        const values = valuesOf(body)
        await lock(tx, caller.accountId, params.id)
        if (Object.keys(values).length > 0)
          await tx.updateTable('cloud_ips').set(values).where('id', '=', params.id).execute()
        return load(tx, site, caller.accountId, params.id)
      }),
  )

  server.delete(
    '/cloud_ips/:id',
    {
      schema: {
        summary: 'Delete a cloud IP',
        description: 'Its address goes back to the region. Refused (409) while it is mapped.',
        tags: TAGS,
        params: Params,
        response: { 200: CloudIp },
      },
    },
    async ({ caller, params }) =>
      await accounts.commit(caller, async (tx) => {
        const current = await lock(tx, caller.accountId, params.id)
        if (current.status !== 'unmapped') throw refuse('resource_conflict', takenFault(params.id, current.status))
        const last = await load(tx, site, caller.accountId, params.id)
        await freeCloudIp(tx, caller.accountId, params.id)
        await tx.deleteFrom('cloud_ips').where('id', '=', params.id).execute()
        return last
      }),
  )

  server.post(
    '/cloud_ips/:id/map',
    {
      schema: {
        summary: 'Map a cloud IP',
        description:
          'To an interface, to every member of a server group, to a database server, or (as old clients do) to the first interface of a server.',
        tags: TAGS,
        params: Params,
        body: Type.Object({ destination: Type.String() }),
        response: { 202: CloudIp },
      },
    },
    async ({ caller, params, body }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const current = await lock(tx, caller.accountId, params.id)
          if (current.status !== 'unmapped') throw refuse('resource_conflict', takenFault(params.id, current.status))
          const destination = await findDestination(tx, caller.accountId, body.destination)
          await tx
            .updateTable('cloud_ips')
            .set({ ...destination, status: 'mapped', mapped_at: sql`clock_timestamp()` })
            .where('id', '=', params.id)
            .execute()
          const servers = await serversAt(tx, destination)
          await markChanged(tx, servers)
          await refuseBeyondRecord(tx, servers)
          return load(tx, site, caller.accountId, params.id)
        }),
      ),
  )

  server.post(
    '/cloud_ips/:id/unmap',
    { schema: { summary: 'Unmap a cloud IP', tags: TAGS, params: Params, response: { 202: CloudIp } } },
    async ({ caller, params }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const current = await lock(tx, caller.accountId, params.id)
          if (current.status !== 'mapped')
            throw refuse(
              'resource_conflict',
              current.status === 'unmapped' ? `${params.id} is not mapped` : takenFault(params.id, current.status),
            )
          const servers = await serversAt(tx, current)
          await tx
            .updateTable('cloud_ips')
            .set({ status: 'unmapped', ...NOWHERE })
            .where('id', '=', params.id)
            .execute()
          await markChanged(tx, servers)
          return load(tx, site, caller.accountId, params.id)
        }),
      ),
  )
}

/** The columns that a request sets. An empty reverse_dns clears it. */
function valuesOf({ name, reverse_dns, port_translators }: Static<typeof Update>): {
  name?: string
  reverse_dns?: string | null
  port_translators?: string
} {
  const translators = port_translators?.map(({ protocol, incoming, outgoing }): PortTranslator => ({
    protocol,
    incoming: Number(incoming),
    outgoing: Number(outgoing),
  }))
  const faults = (translators ?? []).flatMap(({ protocol, incoming, outgoing }, i) => [
    ...([incoming, outgoing].some((port) => port < 1 || port > 65_535)
      ? [
          fieldFault(
            `port_translators.${String(i)}`,
            'out_of_range',
            `port_translators.${String(i)} must have ports from 1 to 65535`,
          ),
        ]
      : []),
    ...(translators!.findIndex((other) => other.protocol === protocol && other.incoming === incoming) < i
      ? [
          fieldFault(
            `port_translators.${String(i)}`,
            'not_allowed',
            `port_translators.${String(i)} has the protocol and incoming port of an earlier one`,
          ),
        ]
      : []),
  ])
  const [first, ...others] = faults
  if (first !== undefined) throw refuse('unprocessable_entity', first, ...others)
  return {
    ...(name !== undefined && { name: name ?? '' }),
    ...(reverse_dns !== undefined && { reverse_dns: reverse_dns === '' ? null : reverse_dns }),
    ...(translators !== undefined && { port_translators: JSON.stringify(translators) }),
  }
}

type Destination = Pick<Selectable<Tables['cloud_ips']>, 'interface_id' | 'server_group_id' | 'database_server_id'>
const NOWHERE: Destination = { interface_id: null, server_group_id: null, database_server_id: null }

/**
 * Finds a destination in the account and locks it, so that a server or database server is not deleted and no server
 * joins a group meanwhile.
 */
async function findDestination(tx: Tx, accountId: string, id: string): Promise<Destination> {
  const alive = tx
    .selectFrom('interfaces')
    .innerJoin('servers', 'servers.id', 'interfaces.server_id')
    .select('interfaces.id')
    .where('servers.account_id', '=', accountId)
    .where('servers.status', 'not in', ['deleting', 'deleted'])
    .forUpdate('servers')
  switch (id.split('-', 1)[0]) {
    case 'int':
    case 'srv': {
      const found = await (
        id.startsWith('int')
          ? alive.where('interfaces.id', '=', id)
          : alive.where('servers.id', '=', id).orderBy('interfaces.created_at').limit(1)
      ).executeTakeFirst()
      if (found === undefined) throw notFound(`the destination ${id}`)
      return { ...NOWHERE, interface_id: found.id }
    }
    case 'grp': {
      const found = await tx
        .selectFrom('server_groups')
        .select('id')
        .where('id', '=', id)
        .where('account_id', '=', accountId)
        .forUpdate()
        .executeTakeFirst()
      if (found === undefined) throw notFound(`the destination ${id}`)
      return { ...NOWHERE, server_group_id: found.id }
    }
    case 'dbs': {
      const found = await tx
        .selectFrom('database_servers')
        .select(['id', 'status'])
        .where('id', '=', id)
        .where('account_id', '=', accountId)
        .where('status', 'not in', ['deleting', 'deleted'])
        .forUpdate()
        .executeTakeFirst()
      if (found === undefined) throw notFound(`the destination ${id}`)
      if (['failing', 'failed'].includes(found.status)) throw refuse('resource_conflict', `${id} is ${found.status}`)
      return { ...NOWHERE, database_server_id: found.id }
    }
    case 'lba':
      throw notFound(`the destination ${id}`)
    default:
      throw refuse(
        'unprocessable_entity',
        fieldFault(
          'destination',
          'wrong_kind',
          'destination must be the id of an interface, a server, a server group or a database server',
        ),
      )
  }
}

/**
 * The servers whose guests see a change at a destination. Locks a group, so that no server joins it before the commit.
 */
async function serversAt(tx: Tx, { interface_id, server_group_id }: Destination): Promise<string[]> {
  if (interface_id === null && server_group_id === null) return []
  if (interface_id !== null)
    return (await tx.selectFrom('interfaces').select('server_id').where('id', '=', interface_id).execute()).map(
      ({ server_id }) => server_id,
    )
  await tx.selectFrom('server_groups').select('id').where('id', '=', server_group_id).forUpdate().execute()
  return (
    await tx
      .selectFrom('server_group_members')
      .select('server_id')
      .where('server_group_id', '=', server_group_id)
      .execute()
  ).map(({ server_id }) => server_id)
}

async function lock(tx: Tx, accountId: string, id: string): Promise<Selectable<Tables['cloud_ips']>> {
  const row = await tx
    .selectFrom('cloud_ips')
    .selectAll()
    .where('id', '=', id)
    .where('account_id', '=', accountId)
    .forUpdate()
    .executeTakeFirst()
  if (row === undefined) throw noSuch('cloud IP', id)
  return row
}

/** Cloud IPs with everything that their form shows, in one query. */
function selectCloudIps(database: Reader, accountId: string) {
  return database
    .selectFrom('cloud_ips')
    .innerJoin('accounts', 'accounts.id', 'cloud_ips.account_id')
    .leftJoin('interfaces', 'interfaces.id', 'cloud_ips.interface_id')
    .leftJoin('servers', 'servers.id', 'interfaces.server_id')
    .leftJoin('server_groups', 'server_groups.id', 'cloud_ips.server_group_id')
    .select((eb) => [
      'cloud_ips.id',
      'cloud_ips.name',
      'cloud_ips.public_ipv4',
      'cloud_ips.public_ipv6',
      'cloud_ips.status',
      'cloud_ips.reverse_dns',
      'cloud_ips.port_translators',
      'accounts.id as account_id',
      'accounts.name as account_name',
      'accounts.status as account_status',
      'interfaces.id as interface_id',
      'interfaces.mac_address',
      'interfaces.ipv4_address',
      'servers.id as server_id',
      'servers.name as server_name',
      'servers.status as server_status',
      'servers.locked as server_locked',
      'servers.created_at as server_created_at',
      'servers.started_at as server_started_at',
      'servers.deleted_at as server_deleted_at',
      'server_groups.id as group_id',
      'server_groups.name as group_name',
      'server_groups.description as group_description',
      'server_groups.is_default as group_is_default',
      'server_groups.created_at as group_created_at',
      jsonObjectFrom(
        eb
          .selectFrom('database_servers')
          .selectAll('database_servers')
          .whereRef('database_servers.id', '=', 'cloud_ips.database_server_id'),
      ).as('database_server'),
    ])
    .where('cloud_ips.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectCloudIps>>[number]

async function load(database: Reader, site: Site, accountId: string, id: string): Promise<Static<typeof CloudIp>> {
  const row = await selectCloudIps(database, accountId).where('cloud_ips.id', '=', id).executeTakeFirst()
  if (row === undefined) throw noSuch('cloud IP', id)
  return represent(site, row)
}

function represent(site: Site, row: Row): Static<typeof CloudIp> {
  return {
    ...nestedCloudIp(site, row),
    port_translators: row.port_translators,
    account: nestedAccount(site, { id: row.account_id, name: row.account_name, status: row.account_status }),
    interface:
      row.interface_id === null
        ? null
        : nestedInterface(site, {
            id: row.interface_id,
            mac_address: row.mac_address!,
            ipv4_address: row.ipv4_address!,
          }),
    server:
      row.server_id === null
        ? null
        : nestedServer(site, {
            id: row.server_id,
            name: row.server_name!,
            status: row.server_status!,
            locked: row.server_locked!,
            created_at: row.server_created_at!,
            started_at: row.server_started_at,
            deleted_at: row.server_deleted_at,
          }),
    server_group:
      row.group_id === null
        ? null
        : nestedServerGroup(site, {
            id: row.group_id,
            name: row.group_name!,
            description: row.group_description!,
            is_default: row.group_is_default!,
            created_at: row.group_created_at!,
          }),
    load_balancer: null,
    database_server: row.database_server === null ? null : nestedDatabaseServer(site, row.database_server),
  }
}
