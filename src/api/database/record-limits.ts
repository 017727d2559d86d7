/** The limits of a record (docs/record.md) for what clients add to a server: server groups, SSH keys, tags and cloud IPs. */
import { sql } from 'kysely'
import { RECORD_MAX_BYTES } from '../../metadata/instance.ts'
import { CLOUD_IPS_MAX, PUBLIC_KEYS_MAX, SERVER_GROUPS_MAX } from '../../metadata/schema.ts'
import { refuse, type Refusal } from '../refusal.ts'
import type { Change } from './transaction.ts'

/**
 * How many bytes of a record server groups, SSH keys and tags may take as JSON. The other 32 KiB are enough for everything else at its longest, most of all the
 * cloud IPs, and for what is added without a check: a longer domain of the region, a second hypervisor, a seal.
 */
const ADDED_MAX_BYTES = RECORD_MAX_BYTES - 32 * 1024

interface Added { readonly id: string, readonly groups: number, readonly keys: number, readonly cloud_ips: number, readonly bytes: number }

/**
 * Refuses a change after which servers have more than their records can hold. Call it in the transaction of each change that makes a record longer, after
 * the change. The account must be locked, so that no other change adds to them. `bytes` counts what json_build_object writes, which is no shorter than
 * JSON.stringify.
 */
export async function refuseBeyondRecord(change: Change, serverIds: readonly string[]): Promise<Refusal | undefined> {
  const { rows } = await sql<Added>`
    select * from (
      select servers.id, in_groups.count as groups, with_keys.count as keys, octet_length(servers.tags::text) + in_groups.bytes + with_keys.bytes as bytes,
        (select count(*) from cloud_ips join interfaces on interfaces.id = cloud_ips.interface_id where interfaces.server_id = servers.id)
        + (select count(*) from cloud_ips join server_group_members on server_group_members.server_group_id = cloud_ips.server_group_id
            where server_group_members.server_id = servers.id) as cloud_ips
      from servers
      cross join lateral (
        select count(*), coalesce(sum(octet_length(json_build_object('id', id, 'name', coalesce(nullif(name, ''), id))::text)), 0) as bytes
        from server_groups join server_group_members on server_group_id = id where server_id = servers.id) as in_groups
      cross join lateral (
        select count(*), coalesce(sum(octet_length(json_build_object('user', user_id, 'key', key)::text)), 0) as bytes
        from server_keys where server_id = servers.id) as with_keys
      where servers.id = any(${[...serverIds]})) as added
    where groups > ${SERVER_GROUPS_MAX} or keys > ${PUBLIC_KEYS_MAX} or cloud_ips > ${CLOUD_IPS_MAX} or bytes > ${ADDED_MAX_BYTES} order by id`.execute(change)
  const [first, ...others] = rows.flatMap(({ id, groups, keys, cloud_ips: cloudIps, bytes }) => [
    ...groups > SERVER_GROUPS_MAX ? [`${id} would be in ${String(groups)} server groups: the most are ${String(SERVER_GROUPS_MAX)}`] : [],
    ...keys > PUBLIC_KEYS_MAX ? [`${id} would have ${String(keys)} SSH keys: the most are ${String(PUBLIC_KEYS_MAX)}`] : [],
    ...cloudIps > CLOUD_IPS_MAX ? [`${id} would have ${String(cloudIps)} cloud IPs: the most are ${String(CLOUD_IPS_MAX)}`] : [],
    ...bytes > ADDED_MAX_BYTES ? [`${id} would have ${String(bytes)} bytes of server groups, SSH keys and tags as JSON: the most are ${String(ADDED_MAX_BYTES)}`] : [],
  ])
  return first === undefined ? undefined : refuse('unprocessable_entity', first, ...others)
}
