/** Changes of server groups and their members. Guests see the groups of their server as security groups. */
import { sql } from 'kysely'
import { markChanged } from '../database/outbox.ts'
import type { Tx } from '../database/transaction.ts'
import { fieldFault, noSuchIn, refuse, refuseAny, type Detail } from '../model/refusal.ts'
import { nextId } from './allocate.ts'
import { atGroup, moveCloudIps } from './cloud-ips.ts'
import { refuseBeyondLimit } from './limits.ts'
import { addRow, lockRow, setValues } from './own-rows.ts'
import { refuseBeyondRecord } from './record-limits.ts'

type GroupValues = Partial<Readonly<Record<'name' | 'description', string>>>

export async function createGroup(
  tx: Tx,
  accountId: string,
  values: GroupValues,
  serverIds: readonly string[],
): Promise<string> {
  await refuseBeyondLimit(tx, accountId, 'server_groups_limit')
  const id = await nextId(tx, 'grp')
  await addRow(tx, 'server_groups', {
    id,
    account_id: accountId,
    name: '',
    description: '',
    is_default: false,
    ...values,
  })
  await insertMembers(tx, accountId, id, serverIds)
  return id
}

export async function updateGroup(tx: Tx, accountId: string, id: string, values: GroupValues): Promise<void> {
  const group = await lockRow(tx, 'serverGroup', accountId, id)
  await setValues(tx, 'server_groups', id, values)
  if (values.name === undefined || values.name === group.name) return
  const members = await membersOf(tx, id)
  await markChanged(tx, members) // guests see the name
  if (lengthInRecord(id, values.name) > lengthInRecord(id, group.name)) await refuseBeyondRecord(tx, members)
}

/** Deletes a group without servers, but not the default one. Unmaps its cloud IPs. */
export async function deleteGroup(tx: Tx, accountId: string, id: string): Promise<void> {
  const group = await lockRow(tx, 'serverGroup', accountId, id)
  if (group.is_default) throw refuse('resource_conflict', `${id} is the default server group of the account`)
  if ((await membersOf(tx, id)).length > 0) throw refuse('resource_conflict', `${id} has servers: remove them first`)
  await moveCloudIps(tx, 'release', atGroup(id))
  await tx.deleteFrom('server_groups').where('id', '=', id).execute()
}

export async function addMembers(tx: Tx, accountId: string, id: string, serverIds: readonly string[]): Promise<void> {
  await lockRow(tx, 'serverGroup', accountId, id)
  await insertMembers(tx, accountId, id, serverIds)
}

export async function removeMembers(
  tx: Tx,
  accountId: string,
  id: string,
  serverIds: readonly string[],
): Promise<void> {
  await lockRow(tx, 'serverGroup', accountId, id)
  await deleteMembers(tx, id, serverIds)
}

export async function moveMembers(
  tx: Tx,
  accountId: string,
  id: string,
  destinationId: string,
  serverIds: readonly string[],
): Promise<void> {
  await lockRow(tx, 'serverGroup', accountId, id)
  await lockRow(tx, 'serverGroup', accountId, destinationId)
  await deleteMembers(tx, id, serverIds)
  await insertMembers(tx, accountId, destinationId, serverIds)
}

/** Locks server groups against a delete, and names those that the account does not have. */
export async function missingGroups(
  tx: Tx,
  accountId: string,
  ids: readonly string[],
  field = 'server_groups',
): Promise<Detail[]> {
  if (ids.length === 0) return []
  const own = tx.selectFrom('server_groups').select('id').where('account_id', '=', accountId)
  const found = await own.where('id', 'in', ids).forShare().execute()
  return ids
    .filter((id) => !found.some((group) => group.id === id))
    .map((id) => noSuchIn(field, 'server group', id, '/1.0/server_groups'))
}

/** Makes these the only groups of a server. They must be locked (missingGroups). */
export async function setGroups(tx: Tx, serverId: string, ids: readonly string[]): Promise<void> {
  await tx.deleteFrom('server_group_members').where('server_id', '=', serverId).execute()
  await joinGroups(tx, serverId, ids)
}

/** Adds a server to groups. They must be locked (missingGroups). */
export async function joinGroups(tx: Tx, serverId: string, ids: readonly string[]): Promise<void> {
  await insertMemberships(tx, ids, [serverId])
}

/** Adds each of these servers to each of these groups, unless it is a member already. */
async function insertMemberships(tx: Tx, groupIds: readonly string[], serverIds: readonly string[]): Promise<void> {
  await sql`
    insert into server_group_members (server_group_id, server_id)
    select * from unnest(${[...groupIds]}::text[]) as groups cross join unnest(${[...serverIds]}::text[]) as members
    on conflict do nothing`.execute(tx)
}

/** The length of a group's name in a record. A shorter one needs no check of the record's limits. */
function lengthInRecord(id: string, name: string): number {
  return Buffer.byteLength(JSON.stringify(name === '' ? id : name))
}

async function insertMembers(tx: Tx, accountId: string, groupId: string, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  const found = await tx
    .selectFrom('servers')
    .select('id')
    .where('account_id', '=', accountId)
    .where('id', 'in', ids)
    .where('status', 'not in', ['deleting', 'deleted'])
    .orderBy('id')
    .forNoKeyUpdate()
    .execute()
  const missing = ids
    .filter((id) => !found.some((server) => server.id === id))
    .map((id) => noSuchIn('servers', 'server', id, '/1.0/servers'))
  refuseAny('unprocessable_entity', missing)
  await insertMemberships(tx, [groupId], ids)
  await markChanged(tx, ids)
  await refuseBeyondRecord(tx, ids)
}

async function deleteMembers(tx: Tx, groupId: string, ids: readonly string[]): Promise<void> {
  const members = await membersOf(tx, groupId)
  const missing = ids
    .filter((id) => !members.includes(id))
    .map((id) => fieldFault('servers', 'does_not_exist', `servers: ${id} is not in ${groupId}`))
  refuseAny('unprocessable_entity', missing)
  if (ids.length === 0) return
  await tx
    .deleteFrom('server_group_members')
    .where('server_group_id', '=', groupId)
    .where('server_id', 'in', ids)
    .execute()
  await markChanged(tx, ids)
}

async function membersOf(tx: Tx, groupId: string): Promise<string[]> {
  const members = tx.selectFrom('server_group_members').select('server_id').where('server_group_id', '=', groupId)
  return (await members.execute()).map(({ server_id }) => server_id)
}
