/** Cloud IPs: public addresses that an account can move between servers. changes/cloud-ips.ts has their states. */
import type { ApiServer } from '../http/server.ts'
import Type, { type Static } from 'typebox'
import type { InferResult } from 'kysely'
import { jsonObjectFrom } from 'kysely/helpers/postgres'
import { CLOUD_IP_STATES } from '../model/cloud-ip-states.ts'
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
import { formatId } from '../model/ids.ts'
import { fieldFault, noSuch, refuse, type Detail } from '../model/refusal.ts'
import { addList, equals } from './lists.ts'
import { Members } from './members.ts'
import { ACCOUNT_COLUMNS, accountOf, alwaysNull, GivenName, NESTED, representation, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'
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
    ...NESTED.cloudIp.schema.properties,
    port_translators: PortTranslators,
    account: NESTED.account.schema,
    interface: Type.Union([NESTED.interface.schema, Type.Null()]),
    server: Type.Union([NESTED.server.schema, Type.Null()]),
    server_group: Type.Union([NESTED.serverGroup.schema, Type.Null()]),
    load_balancer: alwaysNull(representation('NestedLoadBalancer', { type: 'load_balancer' }, {})),
    database_server: Type.Union([NESTED.databaseServer.schema, Type.Null()]),
  },
  { title: 'CloudIp' },
)

/** Adds the eight endpoints. */
export function addCloudIpRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, pool, site } = parts
  const load = async (database: Reader, accountId: string, id: string) =>
    fullCloudIp(
      site,
      await selectCloudIps(database, accountId)
        .where('cloud_ips.id', '=', id)
        .executeTakeFirstOrThrow(() => noSuch('cloud IP', id)),
    )
  const find = prepareOne(pool, 'cloud-ip', ['account', 'id'], (accountId, id) =>
    selectCloudIps(db, accountId).where('cloud_ips.id', '=', id),
  )
  const cloudIps = new Members(server, parts, RESOURCES.cloudIp, CloudIp, load)

  addList(server, RESOURCES.cloudIp, {
    description: 'Those of the account.',
    form: CloudIp,
    filters: {
      name: equals('cloud_ips.name'),
      status: equals('cloud_ips.status', { values: CLOUD_IP_STATES }),
      server_group: equals('cloud_ips.server_group_id', { idOf: 'grp' }),
    },
    select: ({ caller }) => selectCloudIps(db, caller.accountId),
    represent: (rows) => rows.map((row) => fullCloudIp(site, row)),
  })
  cloudIps.get('With what it is mapped to.', async ({ caller }, id) => {
    const row = await find(caller.accountId, id)
    if (row === undefined) throw noSuch('cloud IP', id)
    return fullCloudIp(site, row)
  })
  addWait(server, parts, RESOURCES.cloudIp, {
    ...{ form: CloudIp, states: CLOUD_IP_STATES, canBecome: cloudIpCanBecome, load },
  })
  cloudIps.create(
    { description: 'The region chooses its addresses. It is not mapped yet.', body: Update, status: 201 },
    (tx, { accountId, body }) => createCloudIp(tx, accountId, valuesOf(body)),
  )
  cloudIps.update({ description: 'Fields that are left out stay.', body: Update }, (tx, { accountId, id, body }) =>
    updateCloudIp(tx, accountId, id, valuesOf(body)),
  )
  cloudIps.remove(
    { description: 'Its address goes back to the region. Refused (409) while it is mapped.' },
    (tx, { accountId, id }) => deleteCloudIp(tx, accountId, id),
  )
  cloudIps.action(
    'map',
    {
      operationId: 'mapCloudIp',
      summary: 'Map a cloud IP',
      description:
        'To an interface, to every member of a server group, to a database server, ' +
        'or (as old clients do) to the first interface of a server.',
      body: Type.Object(
        { destination: Type.String() },
        { title: 'CloudIpMapping', examples: [{ destination: formatId('int', 1) }] },
      ),
      status: 202,
    },
    (tx, { accountId, id, body }) => mapCloudIp(tx, accountId, id, body.destination),
  )
  cloudIps.action(
    'unmap',
    {
      operationId: 'unmapCloudIp',
      summary: 'Unmap a cloud IP',
      description: 'Its address stays in the account.',
      status: 202,
    },
    (tx, { accountId, id }) => unmapCloudIp(tx, accountId, id),
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
      ...NESTED.cloudIp.columns,
      'cloud_ips.port_translators',
      ...ACCOUNT_COLUMNS,
      jsonObjectFrom(
        eb
          .selectFrom('interfaces')
          .select(NESTED.interface.columns)
          .whereRef('interfaces.id', '=', 'cloud_ips.interface_id'),
      ).as('interface'),
      jsonObjectFrom(
        eb
          .selectFrom('servers')
          .innerJoin('interfaces', 'interfaces.server_id', 'servers.id')
          .select(NESTED.server.columns)
          .whereRef('interfaces.id', '=', 'cloud_ips.interface_id'),
      ).as('server'),
      jsonObjectFrom(
        eb
          .selectFrom('server_groups')
          .select(NESTED.serverGroup.columns)
          .whereRef('server_groups.id', '=', 'cloud_ips.server_group_id'),
      ).as('server_group'),
      jsonObjectFrom(
        eb
          .selectFrom('database_servers')
          .select(NESTED.databaseServer.columns)
          .whereRef('database_servers.id', '=', 'cloud_ips.database_server_id'),
      ).as('database_server'),
    ])
    .where('cloud_ips.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectCloudIps>>[number]

function fullCloudIp(site: Site, row: Row): Static<typeof CloudIp> {
  return {
    ...NESTED.cloudIp.show(site, row),
    port_translators: row.port_translators,
    account: accountOf(site, row),
    interface: row.interface === null ? null : NESTED.interface.show(site, row.interface),
    server: row.server === null ? null : NESTED.server.show(site, row.server),
    server_group: row.server_group === null ? null : NESTED.serverGroup.show(site, row.server_group),
    load_balancer: null,
    database_server: row.database_server === null ? null : NESTED.databaseServer.show(site, row.database_server),
  }
}
