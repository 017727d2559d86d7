/** Server groups, which guests see as security groups. A cloud IP can be mapped to all members of a group. */
import { sql } from 'kysely'
import Type, { type Static } from 'typebox'
import {
  addMembers,
  createGroup,
  deleteGroup,
  moveMembers,
  removeMembers,
  updateGroup,
} from '../changes/server-groups.ts'
import { formatId } from '../model/ids.ts'
import { alwaysNull, Form, linkedAll } from './kit/forms.ts'
import { FEW_ROWS_AT_ONCE } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { ACCOUNT, NESTED, unimplementedForm } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenDescription, givenTexts, nullable } from './kit/schemas.ts'

/** The full form, which is the collected form too. */
const ServerGroup = new Form('serverGroup', {
  ...NESTED.serverGroup.fields,
  description: Type.String(),
  account: ACCOUNT,
  servers: linkedAll(
    NESTED.server,
    sql`join server_group_members on server_group_members.server_id = servers.id
      where server_group_members.server_group_id = server_groups.id`,
    { filter: (id) => ({ server_group: id }) },
  ),
  firewall_policy: alwaysNull(unimplementedForm('FirewallPolicy', 'firewall_policy')),
})
const GroupServers = Type.Array(Type.Object({ server: Type.String({ minLength: 1, examples: ['srv-6ilgo'] }) }), {
  maxItems: 1000,
})
const Update = Type.Partial(
  Type.Object({
    name: nullable(Type.String({ maxLength: 255, format: 'line' })),
    description: GivenDescription,
  }),
  { title: 'ServerGroupChange', examples: [{ name: 'front' }] },
)
const Create = Type.Object(
  { ...Update.properties, servers: Type.Optional(GroupServers) },
  { title: 'NewServerGroup', examples: [{ name: 'back', description: 'databases' }] },
)

const SERVERS = [{ server: formatId('srv', 1) }]
const ServersBody = Type.Object({ servers: GroupServers }, { title: 'GroupServers', examples: [{ servers: SERVERS }] })

export function addServerGroupRoutes(parts: ResourceParts): void {
  const groups = new Members(parts, { form: ServerGroup })

  groups.list({ description: 'Those of the account, with their servers.', rowsAtOnce: FEW_ROWS_AT_ONCE })
  groups.get('With its servers.')
  groups.create(
    {
      description: 'Guests see it as a security group. `servers` are its first members.',
      body: Create,
      status: 202,
    },
    ({ tx, accountId, body: { servers, ...texts } }) => createGroup(tx, accountId, givenTexts(texts), idsOf(servers)),
  )
  groups.update(
    {
      description: 'Its name and description. Guests see the name at their next request.',
      body: Update,
      status: 202,
    },
    ({ tx, accountId, id, body }) => updateGroup(tx, accountId, id, givenTexts(body)),
  )
  groups.remove(
    {
      description: 'Unmaps its cloud IPs. Refused (409) for the default group and while it has servers.',
      status: 202,
    },
    ({ tx, accountId, id }) => deleteGroup(tx, accountId, id),
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
    ({ tx, accountId, id, body }) => addMembers(tx, accountId, id, idsOf(body.servers)),
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
    ({ tx, accountId, id, body }) => removeMembers(tx, accountId, id, idsOf(body.servers)),
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
    ({ tx, accountId, id, body }) => moveMembers(tx, accountId, id, body.destination, idsOf(body.servers)),
  )
}

function idsOf(members: Static<typeof GroupServers> | undefined): string[] {
  return [...new Set((members ?? []).map(({ server }) => server))]
}
