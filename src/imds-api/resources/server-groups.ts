/** Server groups, which guests see as security groups. A cloud IP can be mapped to all members of a group. */
import type { InferResult } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import type { Caller } from '../auth/account-choice.ts'
import {
  addMembers,
  createGroup,
  deleteGroup,
  moveMembers,
  removeMembers,
  updateGroup,
  type GroupValues,
} from '../changes/server-groups.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { formatId } from '../model/ids.ts'
import { noSuch } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, equals, FEW_ROWS_AT_ONCE } from './lists.ts'
import { addMember } from './members.ts'
import {
  NestedAccount,
  accountOf,
  ACCOUNT_COLUMNS,
  NestedServer,
  nestedServer,
  NestedServerGroup,
  nestedServerGroup,
  SERVER_COLUMNS,
  type Site,
  alwaysNull,
  representation,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

/** The full form, which is the collected form too. */
const ServerGroup = Type.Object(
  {
    ...NestedServerGroup.properties,
    account: NestedAccount,
    servers: Type.Array(NestedServer),
    firewall_policy: alwaysNull(representation('NestedFirewallPolicy', { type: 'firewall_policy' }, {})),
  },
  { title: 'ServerGroup' },
)
const Members = Type.Array(Type.Object({ server: Type.String({ minLength: 1, examples: ['srv-6ilgo'] }) }), {
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
  { ...Update.properties, servers: Type.Optional(Members) },
  { title: 'NewServerGroup', examples: [{ name: 'back', description: 'databases' }] },
)

const TAGS = RESOURCES.serverGroup.tags
const Params = RESOURCES.serverGroup.params

/** Adds the routes. */
export function addServerGroupRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  addList(server, RESOURCES.serverGroup, {
    description: 'Those of the account, with their servers.',
    form: ServerGroup,
    filters: { name: equals('server_groups.name') },
    rowsAtOnce: FEW_ROWS_AT_ONCE,
    select: ({ caller }) => selectGroups(db, caller.accountId),
    represent: (rows) => rows.map((row) => fullServerGroup(site, row)),
  })

  addMember(server, db, RESOURCES.serverGroup, {
    description: 'With its servers.',
    form: ServerGroup,
    load: (database, { caller }, id) => loadServerGroup(database, site, caller.accountId, id),
  })

  /** Commits a change and returns the group after it. */
  const change = (caller: Caller, id: string, work: (tx: Tx) => Promise<void>) =>
    accounts.commit(caller, async (tx) => {
      await work(tx)
      return loadServerGroup(tx, site, caller.accountId, id)
    })

  server.post(
    '/server_groups',
    {
      schema: {
        operationId: 'createServerGroup',
        summary: 'Create a server group',
        description: 'Guests see it as a security group. `servers` are its first members.',
        tags: TAGS,
        body: Create,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, body }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const id = await createGroup(tx, caller.accountId, valuesOf(body), idsOf(body.servers))
          return loadServerGroup(tx, site, caller.accountId, id)
        }),
      ),
  )

  server.put(
    '/server_groups/:id',
    {
      schema: {
        operationId: 'updateServerGroup',
        summary: 'Change a server group',
        description: 'Its name and description. Guests see the name at their next request.',
        tags: TAGS,
        params: Params,
        body: Update,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params: { id }, body }, reply) =>
      reply.code(202).send(await change(caller, id, (tx) => updateGroup(tx, caller.accountId, id, valuesOf(body)))),
  )

  server.delete(
    '/server_groups/:id',
    {
      schema: {
        operationId: 'deleteServerGroup',
        summary: 'Delete a server group',
        description: 'Unmaps its cloud IPs. Refused (409) for the default group and while it has servers.',
        tags: TAGS,
        params: Params,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params: { id } }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const last = await loadServerGroup(tx, site, caller.accountId, id)
          await deleteGroup(tx, caller.accountId, id)
          return last
        }),
      ),
  )

  const SERVERS = [{ server: formatId('srv', 1) }]
  const ServersBody = Type.Object({ servers: Members }, { title: 'GroupServers', examples: [{ servers: SERVERS }] })
  server.post(
    '/server_groups/:id/add_servers',
    {
      schema: {
        operationId: 'addServersToGroup',
        summary: 'Add servers to a group',
        description: 'Servers that are members already stay members.',
        tags: TAGS,
        params: Params,
        body: ServersBody,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params: { id }, body }, reply) =>
      reply.code(202).send(await change(caller, id, (tx) => addMembers(tx, caller.accountId, id, idsOf(body.servers)))),
  )

  server.post(
    '/server_groups/:id/remove_servers',
    {
      schema: {
        operationId: 'removeServersFromGroup',
        summary: 'Remove servers from a group',
        description: 'A server may be left without any group.',
        tags: TAGS,
        params: Params,
        body: ServersBody,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params: { id }, body }, reply) =>
      reply
        .code(202)
        .send(await change(caller, id, (tx) => removeMembers(tx, caller.accountId, id, idsOf(body.servers)))),
  )

  server.post(
    '/server_groups/:id/move_servers',
    {
      schema: {
        operationId: 'moveServersToGroup',
        summary: 'Move servers to another group',
        description: 'Removes them from this group and adds them to `destination`, at once.',
        tags: TAGS,
        params: Params,
        body: Type.Object(
          { servers: Members, destination: Type.String() },
          { title: 'ServerMove', examples: [{ servers: SERVERS, destination: formatId('grp', 2) }] },
        ),
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params: { id }, body }, reply) =>
      reply
        .code(202)
        .send(
          await change(caller, id, (tx) =>
            moveMembers(tx, caller.accountId, id, body.destination, idsOf(body.servers)),
          ),
        ),
  )
}

/** What a request sets. Null clears a text. */
function valuesOf({ name, description }: Static<typeof Update>): GroupValues {
  return {
    ...(name !== undefined && { name: name ?? '' }),
    ...(description !== undefined && { description: description ?? '' }),
  }
}

function idsOf(members: Static<typeof Members> | undefined): string[] {
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
          .select(SERVER_COLUMNS)
          .whereRef('server_group_members.server_group_id', '=', 'server_groups.id')
          .orderBy('servers.id'),
      ).as('servers'),
    ])
    .where('server_groups.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectGroups>>[number]

async function loadServerGroup(
  database: Reader,
  site: Site,
  accountId: string,
  id: string,
): Promise<Static<typeof ServerGroup>> {
  const row = await selectGroups(database, accountId)
    .where('server_groups.id', '=', id)
    .executeTakeFirstOrThrow(() => noSuch('server group', id))
  return fullServerGroup(site, row)
}

function fullServerGroup(site: Site, row: Row): Static<typeof ServerGroup> {
  return {
    ...nestedServerGroup(site, row),
    account: accountOf(site, row),
    servers: row.servers.map((server) => nestedServer(site, server)),
    firewall_policy: null,
  }
}
