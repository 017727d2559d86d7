/** Server groups, which guests see as security groups. A cloud IP can be mapped to all members of a group. */
import type { InferResult } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import {
  addMembers,
  createGroup,
  deleteGroup,
  moveMembers,
  removeMembers,
  updateGroup,
  type GroupValues,
} from '../changes/server-groups.ts'
import type { Reader } from '../database/transaction.ts'
import { formatId } from '../model/ids.ts'
import { noSuch } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, equals, FEW_ROWS_AT_ONCE } from './lists.ts'
import { Members } from './members.ts'
import { ACCOUNT_COLUMNS, accountOf, alwaysNull, NESTED, representation, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

/** The full form, which is the collected form too. */
const ServerGroup = Type.Object(
  {
    ...NESTED.serverGroup.schema.properties,
    account: NESTED.account.schema,
    servers: Type.Array(NESTED.server.schema),
    firewall_policy: alwaysNull(representation('NestedFirewallPolicy', { type: 'firewall_policy' }, {})),
  },
  { title: 'ServerGroup' },
)
const GroupServers = Type.Array(Type.Object({ server: Type.String({ minLength: 1, examples: ['srv-6ilgo'] }) }), {
  maxItems: 1000,
})
const Update = Type.Object(
  {
    name: Type.Optional(Type.Union([Type.String({ maxLength: 255, format: 'line' }), Type.Null()])),
    description: Type.Optional(Type.Union([Type.String({ maxLength: 4096 }), Type.Null()])),
  },
  { title: 'ServerGroupChange', examples: [{ name: 'front' }] },
)
const Create = Type.Object(
  { ...Update.properties, servers: Type.Optional(GroupServers) },
  { title: 'NewServerGroup', examples: [{ name: 'back', description: 'databases' }] },
)

const SERVERS = [{ server: formatId('srv', 1) }]
const ServersBody = Type.Object({ servers: GroupServers }, { title: 'GroupServers', examples: [{ servers: SERVERS }] })

/** Adds the routes. */
export function addServerGroupRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, site } = parts
  const groups = new Members(server, parts, RESOURCES.serverGroup, ServerGroup, async (database, accountId, id) =>
    fullServerGroup(
      site,
      await selectGroups(database, accountId)
        .where('server_groups.id', '=', id)
        .executeTakeFirstOrThrow(() => noSuch('server group', id)),
    ),
  )

  addList(server, RESOURCES.serverGroup, {
    description: 'Those of the account, with their servers.',
    form: ServerGroup,
    filters: { name: equals('server_groups.name') },
    rowsAtOnce: FEW_ROWS_AT_ONCE,
    select: ({ caller }) => selectGroups(db, caller.accountId),
    represent: (rows) => rows.map((row) => fullServerGroup(site, row)),
  })
  groups.get('With its servers.')
  groups.create(
    {
      description: 'Guests see it as a security group. `servers` are its first members.',
      body: Create,
      status: 202,
    },
    (tx, { accountId, body }) => createGroup(tx, accountId, valuesOf(body), idsOf(body.servers)),
  )
  groups.update(
    {
      description: 'Its name and description. Guests see the name at their next request.',
      body: Update,
      status: 202,
    },
    (tx, { accountId, id, body }) => updateGroup(tx, accountId, id, valuesOf(body)),
  )
  groups.remove(
    {
      description: 'Unmaps its cloud IPs. Refused (409) for the default group and while it has servers.',
      status: 202,
    },
    (tx, { accountId, id }) => deleteGroup(tx, accountId, id),
  )
  groups.action(
    'add_servers',
    {
      operationId: 'addServersToGroup',
      summary: 'Add servers to a group',
      description: 'Servers that are members already stay members.',
      body: ServersBody,
      status: 202,
    },
    (tx, { accountId, id, body }) => addMembers(tx, accountId, id, idsOf(body.servers)),
  )
  groups.action(
    'remove_servers',
    {
      operationId: 'removeServersFromGroup',
      summary: 'Remove servers from a group',
      description: 'A server may be left without any group.',
      body: ServersBody,
      status: 202,
    },
    (tx, { accountId, id, body }) => removeMembers(tx, accountId, id, idsOf(body.servers)),
  )
  groups.action(
    'move_servers',
    {
      operationId: 'moveServersToGroup',
      summary: 'Move servers to another group',
      description: 'Removes them from this group and adds them to `destination`, at once.',
      body: Type.Object(
        { servers: GroupServers, destination: Type.String() },
        { title: 'ServerMove', examples: [{ servers: SERVERS, destination: formatId('grp', 2) }] },
      ),
      status: 202,
    },
    (tx, { accountId, id, body }) => moveMembers(tx, accountId, id, body.destination, idsOf(body.servers)),
  )
}

/** What a request sets. Null clears a text. */
function valuesOf({ name, description }: Static<typeof Update>): GroupValues {
  return {
    ...(name !== undefined && { name: name ?? '' }),
    ...(description !== undefined && { description: description ?? '' }),
  }
}

function idsOf(members: Static<typeof GroupServers> | undefined): string[] {
  return [...new Set((members ?? []).map(({ server }) => server))]
}

function selectGroups(database: Reader, accountId: string) {
  return database
    .selectFrom('server_groups')
    .innerJoin('accounts', 'accounts.id', 'server_groups.account_id')
    .selectAll('server_groups')
    .select((eb) => [
      ...ACCOUNT_COLUMNS,
      jsonArrayFrom(
        eb
          .selectFrom('servers')
          .innerJoin('server_group_members', 'server_group_members.server_id', 'servers.id')
          .select(NESTED.server.columns)
          .whereRef('server_group_members.server_group_id', '=', 'server_groups.id')
          .orderBy('servers.id'),
      ).as('servers'),
    ])
    .where('server_groups.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectGroups>>[number]

function fullServerGroup(site: Site, row: Row): Static<typeof ServerGroup> {
  return {
    ...NESTED.serverGroup.show(site, row),
    account: accountOf(site, row),
    servers: row.servers.map((server) => NESTED.server.show(site, server)),
    firewall_policy: null,
  }
}
