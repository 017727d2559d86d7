/** What one record can hold (docs/record.md) of what clients add to a server: server groups and cloud IPs. */
import { sql } from 'kysely'
import { CLOUD_IPS_MAX, SERVER_GROUPS_MAX } from '../../metadata/schema.ts'
import { refuse, type Refusal } from '../refusal.ts'
import type { Change } from './transaction.ts'

/**
 * Refuses a change after which servers have more than their records can hold: call it in the transaction of the change, after the change. The account must
 * be locked, so that no other change adds to them.
 */
export async function refuseBeyondRecord(change: Change, serverIds: readonly string[]): Promise<Refusal | undefined> {
  const { rows } = await sql<{ id: string, groups: number, cloud_ips: number }>`
    select id, groups, cloud_ips from (
      select servers.id,
        (select count(*) from server_group_members where server_group_members.server_id = servers.id) as groups,
        (select count(*) from cloud_ips join interfaces on interfaces.id = cloud_ips.interface_id where interfaces.server_id = servers.id)
        + (select count(*) from cloud_ips join server_group_members on server_group_members.server_group_id = cloud_ips.server_group_id
            where server_group_members.server_id = servers.id) as cloud_ips
      from servers where servers.id = any(${[...serverIds]})) as counted
    where groups > ${SERVER_GROUPS_MAX} or cloud_ips > ${CLOUD_IPS_MAX} order by id`.execute(change)
  const [first, ...others] = rows.flatMap(({ id, groups, cloud_ips: cloudIps }) => [
    ...groups > SERVER_GROUPS_MAX ? [`${id} would be in ${String(groups)} server groups: the most are ${String(SERVER_GROUPS_MAX)}`] : [],
    ...cloudIps > CLOUD_IPS_MAX ? [`${id} would have ${String(cloudIps)} cloud IPs: the most are ${String(CLOUD_IPS_MAX)}`] : [],
  ])
  return first === undefined ? undefined : refuse('unprocessable_entity', first, ...others)
}
