/** Server groups, which guests see as security groups. A cloud IP can be mapped to all members of a group. */
import type { InferResult, Selectable } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import type { Caller } from '../auth/account-choice.ts'
import { nextId } from '../changes/allocate.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import { markChanged } from '../database/outbox.ts'
import { releaseCloudIpsOfGroup } from '../changes/cloud-ips.ts'
import { refuseBeyondRecord } from '../changes/record-limits.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { fieldFault, noSuch, noSuchIn, refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import {
  listOf,
  NestedAccount,
  nestedAccount,
  NestedServer,
  nestedServer,
  NestedServerGroup,
  nestedServerGroup,
  type Site,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'

/** The full form, which is the collected form too. */
const ServerGroup = Type.Object(
  {
    ...NestedServerGroup.properties,
    account: NestedAccount,
    servers: Type.Array(NestedServer),
    firewall_policy: Type.Null({
      description: 'Always null: firewall policies are not implemented.',
    }),
  },
  { title: 'ServerGroup' },
)
const Members = Type.Array(Type.Object({ server: Type.String({ minLength: 1, examples: ['srv-6ilgo'] }) }), {
  maxItems: 1000,
})
const Update = Type.Object({
  name: Type.Optional(
    Type.Union([Type.String({ maxLength: 255, pattern: '^[^\\x00-\\x1f\\x7f]*$', hint: 'one line' }), Type.Null()]),
  ),
  description: Type.Optional(Type.Union([Type.String({ maxLength: 4096 }), Type.Null()])),
})
const Create = Type.Object({ ...Update.properties, servers: Type.Optional(Members) })

const TAGS = ['Server groups']
const Params = Type.Object({ id: Type.String() })

/** Adds the routes. */
export function addServerGroupRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  server.get(
    '/server_groups',
    { schema: { summary: 'List server groups', tags: TAGS, response: { 200: listOf(ServerGroup) } } },
    async ({ caller }) =>
      (
        await selectGroups(db, caller.accountId)
          .orderBy('server_groups.created_at')
          .orderBy('server_groups.id')
          .execute()
      ).map((row) => represent(site, row)),
  )

  server.get(
    '/server_groups/:id',
    { schema: { summary: 'Get a server group', tags: TAGS, params: Params, response: { 200: ServerGroup } } },
    async ({ caller, params }) => await load(db, site, caller.accountId, params.id),
  )

  server.post(
    '/server_groups',
    { schema: { summary: 'Create a server group', tags: TAGS, body: Create, response: { 202: ServerGroup } } },
    async ({ caller, body }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          await refuseBeyondLimit(tx, caller.accountId, 'server_groups_limit')
          const id = await nextId(tx, 'grp')
          await tx
            .insertInto('server_groups')
            .values({
              id,
              account_id: caller.accountId,
              name: body.name ?? '',
              description: body.description ?? '',
              is_default: false,
            })
            .execute()
          await addMembers(tx, caller.accountId, id, memberIds(body.servers))
          return load(tx, site, caller.accountId, id)
        }),
      ),
  )

  server.put(
    '/server_groups/:id',
    {
      schema: {
        summary: 'Change a server group',
        tags: TAGS,
        params: Params,
        body: Update,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params, body }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const group = await lockGroup(tx, caller.accountId, params.id)
          const values = {
            ...(body.name !== undefined && { name: body.name ?? '' }),
            ...(body.description !== undefined && { description: body.description ?? '' }),
          }
          if (Object.keys(values).length > 0)
            await tx.updateTable('server_groups').set(values).where('id', '=', params.id).execute()
          if (values.name === undefined || values.name === group.name)
            return load(tx, site, caller.accountId, params.id)
          const members = await membersOf(tx, params.id)
          await markChanged(tx, members) // guests see the name
          if (lengthInRecord(params.id, values.name) > lengthInRecord(params.id, group.name))
            await refuseBeyondRecord(tx, members)
          return load(tx, site, caller.accountId, params.id)
        }),
      ),
  )

  server.delete(
    '/server_groups/:id',
    {
      schema: {
        summary: 'Delete a server group',
        description: 'Unmaps its cloud IPs. Refused (409) for the default group and while it has servers.',
        tags: TAGS,
        params: Params,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const group = await lockGroup(tx, caller.accountId, params.id)
          if (group.is_default)
            throw refuse('resource_conflict', `${params.id} is the default server group of the account`)
          if ((await membersOf(tx, params.id)).length > 0)
            throw refuse('resource_conflict', `${params.id} has servers: remove them first`)
          const last = await load(tx, site, caller.accountId, params.id)
          await releaseCloudIpsOfGroup(tx, params.id)
          await tx.deleteFrom('server_groups').where('id', '=', params.id).execute()
          return last
        }),
      ),
  )

  type Task = (tx: Tx) => Promise<void>
  const changeMembers = (caller: Caller, id: string, task: Task) =>
    accounts.commit(caller, async (tx) => {
      await lockGroup(tx, caller.accountId, id)
      await task(tx)
      return load(tx, site, caller.accountId, id)
    })

  const ServersBody = Type.Object({ servers: Members })
  server.post(
    '/server_groups/:id/add_servers',
    {
      schema: {
        summary: 'Add servers to a group',
        tags: TAGS,
        params: Params,
        body: ServersBody,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params, body }, reply) =>
      reply
        .code(202)
        .send(
          await changeMembers(caller, params.id, (tx) =>
            addMembers(tx, caller.accountId, params.id, memberIds(body.servers)),
          ),
        ),
  )

  server.post(
    '/server_groups/:id/remove_servers',
    {
      schema: {
        summary: 'Remove servers from a group',
        tags: TAGS,
        params: Params,
        body: ServersBody,
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params, body }, reply) =>
      reply
        .code(202)
        .send(await changeMembers(caller, params.id, (tx) => removeMembers(tx, params.id, memberIds(body.servers)))),
  )

  server.post(
    '/server_groups/:id/move_servers',
    {
      schema: {
        summary: 'Move servers to another group',
        tags: TAGS,
        params: Params,
        body: Type.Object({ servers: Members, destination: Type.String() }),
        response: { 202: ServerGroup },
      },
    },
    async ({ caller, params, body }, reply) =>
      reply.code(202).send(
        await changeMembers(caller, params.id, async (tx) => {
          await lockGroup(tx, caller.accountId, body.destination)
          await removeMembers(tx, params.id, memberIds(body.servers))
          await addMembers(tx, caller.accountId, body.destination, memberIds(body.servers))
        }),
      ),
  )
}

/** The length of a group's name in a record. A shorter one needs no check of the record's limits. */
function lengthInRecord(id: string, name: string): number {
  return Buffer.byteLength(JSON.stringify(name === '' ? id : name))
}

function memberIds(members: Static<typeof Members> | undefined): string[] {
  return [...new Set((members ?? []).map(({ server }) => server))]
}

async function addMembers(tx: Tx, accountId: string, groupId: string, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  const found = await tx
    .selectFrom('servers')
    .select('id')
    .where('account_id', '=', accountId)
    .where('id', 'in', ids)
    .where('status', 'not in', ['deleting', 'deleted'])
    .orderBy('id')
    .forUpdate()
    .execute()
  const [missing, ...others] = ids
    .filter((id) => !found.some((server) => server.id === id))
    .map((id) => noSuchIn('servers', 'server', id, '/1.0/servers'))
  if (missing !== undefined) throw refuse('unprocessable_entity', missing, ...others)
  await tx
    .insertInto('server_group_members')
    .values(ids.map((server_id) => ({ server_group_id: groupId, server_id })))
    .onConflict((conflict) => conflict.doNothing())
    .execute()
  await markChanged(tx, ids)
  await refuseBeyondRecord(tx, ids)
}

async function removeMembers(tx: Tx, groupId: string, ids: readonly string[]): Promise<void> {
  const members = await membersOf(tx, groupId)
  const [missing, ...others] = ids
    .filter((id) => !members.includes(id))
    .map((id) => fieldFault('servers', 'does_not_exist', `servers: ${id} is not in ${groupId}`))
  if (missing !== undefined) throw refuse('unprocessable_entity', missing, ...others)
  if (ids.length === 0) return
  await tx
    .deleteFrom('server_group_members')
    .where('server_group_id', '=', groupId)
    .where('server_id', 'in', ids)
    .execute()
  await markChanged(tx, ids)
}

async function membersOf(tx: Tx, groupId: string): Promise<string[]> {
  return (
    await tx.selectFrom('server_group_members').select('server_id').where('server_group_id', '=', groupId).execute()
  ).map(({ server_id }) => server_id)
}

async function lockGroup(tx: Tx, accountId: string, id: string): Promise<Selectable<Tables['server_groups']>> {
  const row = await tx
    .selectFrom('server_groups')
    .selectAll()
    .where('id', '=', id)
    .where('account_id', '=', accountId)
    .forUpdate()
    .executeTakeFirst()
  if (row === undefined) throw noSuch('server group', id)
  return row
}

function selectGroups(database: Reader, accountId: string) {
  return database
    .selectFrom('server_groups')
    .innerJoin('accounts', 'accounts.id', 'server_groups.account_id')
    .selectAll('server_groups')
    .select((eb) => [
      'accounts.name as account_name',
      'accounts.status as account_status',
      jsonArrayFrom(
        eb
          .selectFrom('servers')
          .innerJoin('server_group_members', 'server_group_members.server_id', 'servers.id')
          .select([
            'servers.id',
            'servers.name',
            'servers.status',
            'servers.locked',
            'servers.created_at',
            'servers.started_at',
            'servers.deleted_at',
          ])
          .whereRef('server_group_members.server_group_id', '=', 'server_groups.id')
          .orderBy('servers.id'),
      ).as('servers'),
    ])
    .where('server_groups.account_id', '=', accountId)
}

type Row = InferResult<ReturnType<typeof selectGroups>>[number]

async function load(database: Reader, site: Site, accountId: string, id: string): Promise<Static<typeof ServerGroup>> {
  const row = await selectGroups(database, accountId).where('server_groups.id', '=', id).executeTakeFirst()
  if (row === undefined) throw noSuch('server group', id)
  return represent(site, row)
}

function represent(site: Site, row: Row): Static<typeof ServerGroup> {
  return {
    ...nestedServerGroup(site, row),
    account: nestedAccount(site, { id: row.account_id, name: row.account_name, status: row.account_status }),
    servers: row.servers.map((server) => nestedServer(site, server)),
    firewall_policy: null,
  }
}
