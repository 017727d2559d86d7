/** Cloud IPs: public addresses that an account can move between servers. changes/cloud-ips.ts has their states. */
import type { ApiServer } from '../http/server.ts'
import Type, { type Static } from 'typebox'
import type { InferResult } from 'kysely'
import { jsonObjectFrom } from 'kysely/helpers/postgres'
import { CLOUD_IP_STATES, type CloudIpStatus } from '../model/cloud-ip-states.ts'
import type { PortTranslator } from '../model/port-translator.ts'
import {
  cloudIpCanBecome,
  createCloudIp,
  deleteCloudIp,
  mapCloudIp,
  unmapCloudIp,
  updateCloudIp,
  type CloudIpValues,
} from '../changes/cloud-ips.ts'
import { prepareOne } from '../database/prepared.ts'
import type { Reader } from '../database/transaction.ts'
import { formatId, PREFIXES } from '../model/ids.ts'
import { fieldFault, noSuch, refuse, type Detail } from '../model/refusal.ts'
import { addList, byCreation, equals } from './lists.ts'
import {
  CLOUD_IP_COLUMNS,
  DATABASE_SERVER_COLUMNS,
  GivenName,
  INTERFACE_COLUMNS,
  SERVER_COLUMNS,
  SERVER_GROUP_COLUMNS,
  NestedAccount,
  accountOf,
  ACCOUNT_COLUMNS,
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
  idParams,
  alwaysNull,
  representation,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { addWait } from './waiting.ts'

const Port = Type.Integer({ minimum: 1, maximum: 65_535 })
/** Clients send ports as text too. */
const GivenPort = Type.Union([Port, Type.String({ pattern: '^[0-9]{1,5}$', hint: 'a port from 1 to 65535' })], {
  examples: [80],
})
const Protocol = Type.Union([Type.Literal('tcp'), Type.Literal('udp')], { examples: ['tcp'] })
const PortTranslators = Type.Array(Type.Object({ protocol: Protocol, incoming: Port, outgoing: Port }))
const Update = Type.Object(
  {
    name: Type.Optional(GivenName),
    reverse_dns: Type.Optional(
      Type.Union([Type.Null(), Type.Literal(''), Type.String({ format: 'pointer-name' })], {
        description: 'Null and an empty text clear it.',
      }),
    ),
    port_translators: Type.Optional(
      Type.Array(Type.Object({ protocol: Protocol, incoming: GivenPort, outgoing: GivenPort }), { maxItems: 100 }),
    ),
  },
  {
    title: 'CloudIpFields',
    examples: [{ name: 'www', port_translators: [{ protocol: 'tcp', incoming: 443, outgoing: 8443 }] }],
  },
)

/** The full form, which is the collected form too. */
const CloudIp = Type.Object(
  {
    ...NestedCloudIp.properties,
    port_translators: PortTranslators,
    account: NestedAccount,
    interface: Type.Union([NestedInterface, Type.Null()]),
    server: Type.Union([NestedServer, Type.Null()]),
    server_group: Type.Union([NestedServerGroup, Type.Null()]),
    load_balancer: alwaysNull(representation('NestedLoadBalancer', 'load_balancer', {})),
    database_server: Type.Union([NestedDatabaseServer, Type.Null()]),
  },
  { title: 'CloudIp' },
)

const TAGS = ['Cloud IPs']
const Params = idParams(formatId('cip', 1))

/** Adds the seven endpoints. */
export function addCloudIpRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, pool, accounts, site } = parts
  const find = prepareOne(pool, 'cloud-ip', ['account', 'id'], (accountId, id) =>
    selectCloudIps(db, accountId).where('cloud_ips.id', '=', id),
  )
  addList(server, {
    path: '/cloud_ips',
    operationId: 'listCloudIps',
    summary: 'List cloud IPs',
    description: 'Those of the account.',
    tags: TAGS,
    form: CloudIp,
    order: byCreation('cloud_ips'),
    filters: {
      name: equals('cloud_ips.name'),
      status: equals('cloud_ips.status', { values: CLOUD_IP_STATES }),
      server_group: equals('cloud_ips.server_group_id', { idOf: PREFIXES.serverGroup }),
    },
    select: ({ caller }) => selectCloudIps(db, caller.accountId),
    represent: (rows) => rows.map((row) => fullCloudIp(site, row)),
  })

  server.get(
    '/cloud_ips/:id',
    {
      schema: {
        operationId: 'getCloudIp',
        summary: 'Get a cloud IP',
        description: 'With what it is mapped to.',
        tags: TAGS,
        params: Params,
        response: { 200: CloudIp },
      },
      config: {
        member: {
          table: 'cloud_ips',
          load: (database, { caller }, id) => loadCloudIp(database, site, caller.accountId, id),
        },
      },
    },
    async ({ caller, params: { id } }) => {
      const row = await find(caller.accountId, id)
      if (row === undefined) throw noSuch('cloud IP', id)
      return fullCloudIp(site, row)
    },
  )

  addWait(server, parts, {
    path: '/cloud_ips',
    operationId: 'waitForCloudIp',
    noun: 'a cloud IP',
    tags: TAGS,
    params: Params,
    form: CloudIp,
    states: CLOUD_IP_STATES,
    canBecome: (from, to) => cloudIpCanBecome(from as CloudIpStatus, to),
    load: (database, accountId, id) => loadCloudIp(database, site, accountId, id),
  })

  server.post(
    '/cloud_ips',
    {
      schema: {
        operationId: 'createCloudIp',
        summary: 'Create a cloud IP',
        description: 'The region chooses its addresses. It is not mapped yet.',
        tags: TAGS,
        body: Update,
        response: { 201: CloudIp },
      },
    },
    async ({ caller, body }, reply) =>
      reply.code(201).send(
        await accounts.commit(caller, async (tx) => {
          const id = await createCloudIp(tx, caller.accountId, valuesOf(body))
          return loadCloudIp(tx, site, caller.accountId, id)
        }),
      ),
  )

  server.put(
    '/cloud_ips/:id',
    {
      schema: {
        operationId: 'updateCloudIp',
        summary: 'Change a cloud IP',
        description: 'Fields that are left out stay.',
        tags: TAGS,
        params: Params,
        body: Update,
        response: { 200: CloudIp },
      },
    },
    async ({ caller, params, body }) =>
      await accounts.commit(caller, async (tx) => {
        await updateCloudIp(tx, caller.accountId, params.id, valuesOf(body))
        return loadCloudIp(tx, site, caller.accountId, params.id)
      }),
  )

  server.delete(
    '/cloud_ips/:id',
    {
      schema: {
        operationId: 'deleteCloudIp',
        summary: 'Delete a cloud IP',
        description: 'Its address goes back to the region. Refused (409) while it is mapped.',
        tags: TAGS,
        params: Params,
        response: { 200: CloudIp },
      },
    },
    async ({ caller, params }) =>
      await accounts.commit(caller, async (tx) => {
        const last = await loadCloudIp(tx, site, caller.accountId, params.id)
        await deleteCloudIp(tx, caller.accountId, params.id)
        return last
      }),
  )

  server.post(
    '/cloud_ips/:id/map',
    {
      schema: {
        operationId: 'mapCloudIp',
        summary: 'Map a cloud IP',
        description:
          'To an interface, to every member of a server group, to a database server, ' +
          'or (as old clients do) to the first interface of a server.',
        tags: TAGS,
        params: Params,
        body: Type.Object(
          { destination: Type.String() },
          { title: 'CloudIpMapping', examples: [{ destination: formatId('int', 1) }] },
        ),
        response: { 202: CloudIp },
      },
    },
    async ({ caller, params, body }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          await mapCloudIp(tx, caller.accountId, params.id, body.destination)
          return loadCloudIp(tx, site, caller.accountId, params.id)
        }),
      ),
  )

  server.post(
    '/cloud_ips/:id/unmap',
    {
      schema: {
        operationId: 'unmapCloudIp',
        summary: 'Unmap a cloud IP',
        description: 'Its address stays in the account.',
        tags: TAGS,
        params: Params,
        response: { 202: CloudIp },
      },
    },
    async ({ caller, params }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          await unmapCloudIp(tx, caller.accountId, params.id)
          return loadCloudIp(tx, site, caller.accountId, params.id)
        }),
      ),
  )
}

/** What a request sets. An empty reverse_dns clears it. Refuses wrong port translators, all at once. */
function valuesOf({ name, reverse_dns, port_translators }: Static<typeof Update>): CloudIpValues {
  const translators = port_translators?.map(({ protocol, incoming, outgoing }): PortTranslator => ({
    protocol,
    incoming: Number(incoming),
    outgoing: Number(outgoing),
  }))
  const [first, ...others] = translatorFaults(translators ?? [])
  if (first !== undefined) throw refuse('unprocessable_entity', first, ...others)
  return {
    ...(name !== undefined && { name: name ?? '' }),
    ...(reverse_dns !== undefined && { reverse_dns: reverse_dns === '' ? null : reverse_dns }),
    ...(translators !== undefined && { port_translators: translators }),
  }
}

function translatorFaults(translators: readonly PortTranslator[]): readonly Detail[] {
  const isPort = (port: number) => port >= 1 && port <= 65_535
  return translators.flatMap(({ protocol, incoming, outgoing }, i) => {
    const field = `port_translators.${String(i)}`
    const first = translators.findIndex((other) => other.protocol === protocol && other.incoming === incoming)
    return [
      ...(isPort(incoming) && isPort(outgoing)
        ? []
        : [fieldFault(field, 'out_of_range', `${field} must have ports from 1 to 65535`)]),
      ...(first < i
        ? [fieldFault(field, 'not_allowed', `${field} has the protocol and incoming port of an earlier one`)]
        : []),
    ]
  })
}

/** Cloud IPs with everything that their form shows, in one query. */
function selectCloudIps(database: Reader, accountId: string) {
  return database
    .selectFrom('cloud_ips')
    .innerJoin('accounts', 'accounts.id', 'cloud_ips.account_id')
    .select((eb) => [
      ...CLOUD_IP_COLUMNS,
      'cloud_ips.port_translators',
      ...ACCOUNT_COLUMNS,
      jsonObjectFrom(
        eb.selectFrom('interfaces').select(INTERFACE_COLUMNS).whereRef('interfaces.id', '=', 'cloud_ips.interface_id'),
      ).as('interface'),
      jsonObjectFrom(
        eb
          .selectFrom('servers')
          .innerJoin('interfaces', 'interfaces.server_id', 'servers.id')
          .select(SERVER_COLUMNS)
          .whereRef('interfaces.id', '=', 'cloud_ips.interface_id'),
      ).as('server'),
      jsonObjectFrom(
        eb
          .selectFrom('server_groups')
          .select(SERVER_GROUP_COLUMNS)
          .whereRef('server_groups.id', '=', 'cloud_ips.server_group_id'),
      ).as('server_group'),
      jsonObjectFrom(
        eb
          .selectFrom('database_servers')
          .select(DATABASE_SERVER_COLUMNS)
          .whereRef('database_servers.id', '=', 'cloud_ips.database_server_id'),
      ).as('database_server'),
    ])
    .where('cloud_ips.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectCloudIps>>[number]

async function loadCloudIp(
  database: Reader,
  site: Site,
  accountId: string,
  id: string,
): Promise<Static<typeof CloudIp>> {
  const row = await selectCloudIps(database, accountId)
    .where('cloud_ips.id', '=', id)
    .executeTakeFirstOrThrow(() => noSuch('cloud IP', id))
  return fullCloudIp(site, row)
}

function fullCloudIp(site: Site, row: Row): Static<typeof CloudIp> {
  return {
    ...nestedCloudIp(site, row),
    port_translators: row.port_translators,
    account: accountOf(site, row),
    interface: row.interface === null ? null : nestedInterface(site, row.interface),
    server: row.server === null ? null : nestedServer(site, row.server),
    server_group: row.server_group === null ? null : nestedServerGroup(site, row.server_group),
    load_balancer: null,
    database_server: row.database_server === null ? null : nestedDatabaseServer(site, row.database_server),
  }
}
