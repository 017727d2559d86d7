/**
 * The limits of a record (docs/record.md) for what clients add to a server: server groups, SSH keys, tags and cloud
 * IPs.
 */
import { sql } from 'kysely'
import { MAX_RECORD_BYTES } from '../../metadata/instance.ts'
import { MAX_PUBLIC_KEYS, MAX_SERVER_GROUPS } from '../../metadata/schema.ts'
import { MAX_CLOUD_IPS } from '../../metadata/schema-interface.ts'
import { runPrepared } from '../database/prepared.ts'
import { refuseAny } from '../model/refusal.ts'
import type { Tx } from '../database/transaction.ts'

/**
 * How many bytes of a record server groups, SSH keys and tags may take as JSON. The other 48 KiB are enough for the
 * longest values of all other fields, also of those that are added without a check: a longer domain of the region, a
 * second hypervisor, a seal, MAX_MAINTENANCE_EVENTS_BYTES.
 */
const MAX_ADDED_BYTES = MAX_RECORD_BYTES - 48 * 1024
/** How many bytes the maintenance events of a record may take as JSON. */
export const MAX_MAINTENANCE_EVENTS_BYTES = 8 * 1024

/** What a further key of a user takes besides its text: its quotes and comma, and a part of the name `moreKeys`. */
const MORE_KEY_BYTES = 16

/**
 * Refuses a change after which servers have more than their records can hold. Call it in the transaction of each change
 * that makes a record longer, after the change. The account must be locked, so that no other change adds to them.
 * `bytes` counts what json_build_object writes, which is no shorter than JSON.stringify.
 */
export async function refuseBeyondRecord(tx: Tx, serverIds: readonly string[]): Promise<void> {
  const ids = [...serverIds]
  // The JSON of a server group is made once. A full join is never a nested loop, whatever PostgreSQL guesses of the
  // tables: 258 servers in 200 groups have 51,600 memberships.
  const query = sql<{ id: string; groups: number; keys: number; cloud_ips: number; bytes: number }>`
    with sizes as materialized (
      select id, octet_length(json_build_object('id', id, 'name', coalesce(nullif(name, ''), id))::text) as bytes
      from server_groups where account_id = (select account_id from servers where id = ${ids[0]})),
    in_groups as materialized (
      select server_id, count(*), sum(bytes) as bytes
      from (select server_group_id, server_id from server_group_members where server_id = any(${ids})) as members
        full join sizes on sizes.id = server_group_id
      group by server_id),
    with_keys as (
      select server_id, sum(keys) as count,
        sum(octet_length(json_build_object('user', user_id, 'key', key)::text) + ${MORE_KEY_BYTES} * (keys - 1)) as bytes
      from (select *, length(key) - length(replace(key, E'\n', '')) + 1 as keys from server_keys
        where server_id = any(${ids})) as of_users
      group by server_id),
    with_cloud_ips as (
      select server_id, count(*) from (
        select interfaces.server_id from cloud_ips
          join interfaces on interfaces.id = cloud_ips.interface_id
        where interfaces.server_id = any(${ids})
        union all
        select server_id from cloud_ips
          join server_group_members on server_group_members.server_group_id = cloud_ips.server_group_id
        where server_id = any(${ids})) as mapped
      group by server_id)
    select * from (
      select servers.id, coalesce(in_groups.count, 0) as groups, coalesce(with_keys.count, 0) as keys,
        coalesce(with_cloud_ips.count, 0) as cloud_ips,
        octet_length(servers.tags::text) + coalesce(in_groups.bytes, 0) + coalesce(with_keys.bytes, 0) as bytes
      from servers
        left join in_groups on in_groups.server_id = servers.id
        left join with_keys on with_keys.server_id = servers.id
        left join with_cloud_ips on with_cloud_ips.server_id = servers.id
      where servers.id = any(${ids})) as added
    where groups > ${MAX_SERVER_GROUPS} or keys > ${MAX_PUBLIC_KEYS} or cloud_ips > ${MAX_CLOUD_IPS}
      or bytes > ${MAX_ADDED_BYTES}
    order by id`
  const rows = await runPrepared(tx, query)
  const faults = rows.flatMap(({ id, groups, keys, cloud_ips: cloudIps, bytes }) =>
    (
      [
        ['be in', groups, 'server groups', MAX_SERVER_GROUPS],
        ['have', keys, 'SSH keys', MAX_PUBLIC_KEYS],
        ['have', cloudIps, 'cloud IPs', MAX_CLOUD_IPS],
        ['have', bytes, 'bytes of server groups, SSH keys and tags as JSON', MAX_ADDED_BYTES],
      ] as const
    )
      .filter(([, count, , most]) => count > most)
      .map(([verb, count, what, most]) => `${id} would ${verb} ${count} ${what}: the most are ${most}`),
  )
  refuseAny('unprocessable_entity', faults)
}
