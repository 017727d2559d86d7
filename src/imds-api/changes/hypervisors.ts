/**
 * The hypervisors, and the placement of new servers. A drained hypervisor gets none. A server that migrates uses RAM on
 * both of its hypervisors.
 */
import { sql } from 'kysely'
import { runPrepared } from '../database/prepared.ts'
import { refuse } from '../model/refusal.ts'
import type { Tx, Db } from '../database/transaction.ts'

/** A hypervisor whose row is locked. `free`: MB of RAM. */
export interface LockedHypervisor {
  readonly name: string
  readonly zone_id: string
  readonly free: number
  readonly drained_at: Date | null
}

/**
 * A hypervisor of the region. `zone`: its handle. `ram`, `free`: MB. `servers`: those on it or on their way to it.
 * `drained_at`: when it was drained; null: it is not.
 */
export interface HypervisorUsage {
  readonly name: string
  readonly zone: string
  readonly ram: number
  readonly free: number
  readonly servers: number
  readonly drained_at: Date | null
}

/** The hypervisors of the region, by name. */
export async function readHypervisorUsage(db: Db): Promise<readonly HypervisorUsage[]> {
  const { rows } = await sql<HypervisorUsage>`
    with used as (
      select location.hypervisor, count(*)::int as servers, sum(ram)::int as ram
      from servers join server_types on server_types.id = servers.server_type_id
        cross join lateral (values (servers.hypervisor), (servers.migrating_to)) as location (hypervisor)
      where deleted_at is null and location.hypervisor is not null group by location.hypervisor)
    select name, zones.handle as zone, hypervisors.ram, hypervisors.ram - coalesce(used.ram, 0) as free,
      coalesce(used.servers, 0) as servers, drained_at
    from hypervisors join zones on zones.id = zone_id left join used on used.hypervisor = name
    where hypervisors.removed_at is null order by name`.execute(db)
  return rows
}

/** Since when hypervisors are drained, by their names. */
export async function readDrained(db: Db): Promise<ReadonlyMap<string, string>> {
  const drained = db.selectFrom('hypervisors').select(['name', 'drained_at']).where('drained_at', 'is not', null)
  const rows = await drained.where('removed_at', 'is', null).execute()
  return new Map(rows.map(({ name, drained_at }) => [name, drained_at!.toISOString()]))
}

/** How many random hypervisors are compared for a new server. */
const SAMPLE_SIZE = 32

/**
 * The hypervisors that a server may use. `zoneId`: undefined for the whole region. `ram`: in MB. `only`: the names of
 * the hypervisors; empty: all. `except`: the hypervisor that it leaves.
 */
export interface WantedPlacement {
  readonly zoneId: string | undefined
  readonly ram: number
  readonly only?: readonly string[]
  readonly except?: string
}

/**
 * Places a server on the hypervisor with the most free RAM among SAMPLE_SIZE random ones. If none of these has enough,
 * or other changes have locked them, it compares all, which takes long in a large region (docs/performance.md). Locks the
 * hypervisor, so that two changes cannot use the same RAM. It waits for another change only if others have locked all
 * that have enough, and then for one. Undefined: none has enough.
 */
export async function placeServer(
  tx: Tx,
  { zoneId, ram, only = [], except = '' }: WantedPlacement,
): Promise<LockedHypervisor | undefined> {
  const isWanted = sql`removed_at is null and drained_at is null and ram >= ${ram} and name <> ${except}
    ${zoneId === undefined ? sql`` : sql`and zone_id = ${zoneId}`}
    ${only.length === 0 ? sql`` : sql`and name = any(${[...only]})`}`
  const fitting = async (limit: number | null) => {
    const query = sql<{ name: string; free: number }>`
      select name, ${freeRam} as free from (
        select name, ram from hypervisors where ${isWanted} order by random() limit ${limit}) as hypervisors
      order by free desc, name`
    return (await runPrepared(tx, query)).filter(({ free }) => free >= ram).map(({ name }) => name)
  }
  const take = async (name: string, locked: 'wait' | 'skip locked') => {
    const hypervisor = await lockHypervisor(tx, name, locked)
    return hypervisor?.drained_at === null && hypervisor.free >= ram ? hypervisor : undefined
  }
  for (const name of await fitting(SAMPLE_SIZE)) {
    const taken = await take(name, 'skip locked')
    if (taken !== undefined) return taken
  }
  for (let names = await fitting(null); names.length > 0; names = await fitting(null)) {
    for (const name of names) {
      const taken = await take(name, 'skip locked')
      if (taken !== undefined) return taken
    }
    const taken = await take(names[0]!, 'wait')
    if (taken !== undefined) return taken
  }
  return undefined
}

/** Locks a hypervisor. Undefined: there is none, or, with `skip locked`, another change has locked it. */
export async function lockHypervisor(
  tx: Tx,
  name: string,
  locked: 'wait' | 'skip locked',
): Promise<LockedHypervisor | undefined> {
  const lock = sql`
    select from hypervisors where name = ${name} and removed_at is null
    for no key update ${locked === 'wait' ? sql`` : sql`skip locked`}`
  if ((await runPrepared(tx, lock)).length === 0) return undefined
  // in a second statement, which sees what was committed before the lock was taken
  const query = sql<LockedHypervisor>`
    select name, zone_id, drained_at, ${freeRam} as free from hypervisors where name = ${name}`
  return (await runPrepared(tx, query))[0]
}

const freeRam = sql<number>`(ram - (
  select coalesce(sum(server_types.ram), 0)
  from (
    select server_type_id from servers where servers.hypervisor = hypervisors.name and deleted_at is null
    union all
    select server_type_id from servers where migrating_to = hypervisors.name and deleted_at is null) as placed
    join server_types on server_types.id = server_type_id))::int`

/**
 * Drains a hypervisor, or ends its drain. It waits for changes that are placing servers there. False: it was in that
 * state before.
 */
export async function setDrained(tx: Tx, name: string, isDrained: boolean): Promise<boolean> {
  const row = await tx
    .selectFrom('hypervisors')
    .select('drained_at')
    .where('name', '=', name)
    .where('removed_at', 'is', null)
    .forUpdate()
    .executeTakeFirst()
  if (row === undefined) {
    const names = (await readHypervisorUsage(tx)).map((one) => one.name)
    throw refuse('resource_not_found', `the region has no hypervisor ${name}: it has ${names.join(', ')}`)
  }
  if ((row.drained_at !== null) === isDrained) return false
  await tx
    .updateTable('hypervisors')
    .set({ drained_at: isDrained ? new Date() : null })
    .where('name', '=', name)
    .execute()
  return true
}
