/** The hypervisors and their free RAM. A server that migrates uses RAM on both. */
import { sql } from 'kysely'
import type { Tx, Reader } from '../database/transaction.ts'

/** A hypervisor. `free`: MB of RAM. */
export interface FreeHypervisor {
  readonly name: string
  readonly zone_id: string
  readonly free: number
}

/** A hypervisor, and the number of servers on it or on their way to it. */
export interface UsedHypervisor {
  readonly name: string
  readonly servers: number
}

/** The hypervisors of the region, by name. */
export async function usedHypervisors(database: Reader): Promise<readonly UsedHypervisor[]> {
  const { rows } = await sql<UsedHypervisor>`
    select name, (
      select count(*) from servers where deleted_at is null and (hypervisor = name or migrating_to = name)
    )::int as servers
    from hypervisors where removed_at is null order by name`.execute(database)
  return rows
}

/**
 * The hypervisors of a zone (default: of the region), those with the most free RAM first. Locks them, so that two
 * changes cannot use the same free RAM.
 */
export async function freeHypervisors(tx: Tx, zoneId: string | undefined): Promise<readonly FreeHypervisor[]> {
  const all = tx
    .selectFrom('hypervisors')
    .select(['name', 'zone_id', 'ram'])
    .where('removed_at', 'is', null)
    .orderBy('name')
    .forUpdate()
  const hypervisors = await (zoneId === undefined ? all : all.where('zone_id', '=', zoneId)).execute()
  const { rows } = await sql<{ hypervisor: string; used: number }>`
    select place.hypervisor, sum(ram) as used from servers join server_types on server_types.id = servers.server_type_id
      cross join lateral (values (servers.hypervisor), (servers.migrating_to)) as place (hypervisor)
    where deleted_at is null and place.hypervisor is not null group by place.hypervisor`.execute(tx)
  const used = new Map(rows.map((row) => [row.hypervisor, row.used]))
  return hypervisors
    .map(({ name, zone_id, ram }) => ({ name, zone_id, free: ram - (used.get(name) ?? 0) }))
    .sort((a, b) => b.free - a.free)
}
