/**
 * Moves the servers of a hypervisor to other hypervisors of their zones, each in its own transaction. A repeated run
 * continues with the servers that are left.
 *
 *     begin:   on NAME                -> migrates to a target      (both are in the record)
 *     move:    on NAME                -> on a target
 *              on NAME, migrates to B -> on B
 *              on A, migrates to NAME -> on A
 */
import type { Db, Tx } from '../database/transaction.ts'
import { refuse } from '../model/refusal.ts'
import { hasActionInProgress } from './action-queue.ts'
import { wakeHypervisor } from './handshake.ts'
import { changePlacement, type Placement, type PlacementParts } from './server-placement.ts'
import { readHypervisorUsage, placeServer } from './hypervisors.ts'

/**
 * `to`: the targets; empty: every hypervisor. `begin`: begins live migrations. `dryRun`: changes nothing. `planned`:
 * the RAM (MB) that a dry run has reserved on each target.
 */
export interface Evacuation {
  readonly name: string
  readonly to: readonly string[]
  readonly begin: boolean
  readonly dryRun: boolean
  readonly retrySeconds: number
  readonly planned: Map<string, number>
}

/** The result for one server: its hypervisors before and after. */
export interface Evacuated {
  readonly kind: 'moved' | 'begun' | 'unchanged'
  readonly from: readonly string[]
  readonly to: readonly string[]
}

type Location = Pick<Placement, 'hypervisor' | 'migrating_to'>

/** The ids of the servers on a hypervisor, or on their way to it. */
export async function findServersOn(db: Db, name: string): Promise<readonly string[]> {
  const rows = await db
    .selectFrom('servers')
    .select('id')
    .where('deleted_at', 'is', null)
    .where((where) => where.or([where('hypervisor', '=', name), where('migrating_to', '=', name)]))
    .orderBy('id')
    .execute()
  return rows.map(({ id }) => id)
}

/** The ids among `ids` that are servers of the database. */
export async function findServersAmong(db: Db, ids: readonly string[]): Promise<ReadonlySet<string>> {
  const rows = ids.length === 0 ? [] : await db.selectFrom('servers').select('id').where('id', 'in', ids).execute()
  return new Set(rows.map(({ id }) => id))
}

export async function evacuateServer(parts: PlacementParts, id: string, evacuation: Evacuation): Promise<Evacuated> {
  let evacuated: Evacuated | undefined
  const isAnyHypervisor = () => true
  await changePlacement(parts, id, isAnyHypervisor, async (tx, server) => {
    const next = await nextLocation(tx, server, evacuation)
    const kind = next === undefined ? 'unchanged' : evacuation.begin ? 'begun' : 'moved'
    evacuated = { kind, from: hypervisorsOf(server), to: hypervisorsOf(next ?? server) }
    if (next === undefined || evacuation.dryRun) return {}
    if (next.migrating_to === null) await wakeHypervisor(tx, next.hypervisor)
    return next
  })
  return evacuated!
}

function hypervisorsOf({ hypervisor, migrating_to: other }: Location): readonly string[] {
  return other === null ? [hypervisor] : [hypervisor, other]
}

/** Where a server goes; undefined: it stays. */
async function nextLocation(tx: Tx, server: Placement, evacuation: Evacuation): Promise<Location | undefined> {
  const { hypervisor, migrating_to: other } = server
  const { name, begin } = evacuation
  if (hypervisor !== name && other !== name) return undefined
  if (other !== null)
    return begin ? undefined : { hypervisor: hypervisor === name ? other : hypervisor, migrating_to: null }
  if (begin && server.status !== 'active' && server.status !== 'inactive')
    throw refuse('resource_conflict', `${server.id} is ${server.status}`)
  if (await hasActionInProgress(tx, server.id, evacuation.retrySeconds))
    throw refuse(
      'resource_conflict',
      `${name} carries out an action of ${server.id}: try again when it has reported the outcome, ` +
        `or when it has not fetched its actions for ${evacuation.retrySeconds} s`,
    )
  const target = await findTarget(tx, server.id, evacuation)
  return begin ? { hypervisor: name, migrating_to: target } : { hypervisor: target, migrating_to: null }
}

async function findTarget(tx: Tx, id: string, { name, to, dryRun, planned }: Evacuation): Promise<string> {
  const { zone_id, zone, ram } = await tx
    .selectFrom('servers')
    .innerJoin('server_types', 'server_types.id', 'servers.server_type_id')
    .innerJoin('zones', 'zones.id', 'servers.zone_id')
    .select(['zone_id', 'zones.handle as zone', 'server_types.ram'])
    .where('servers.id', '=', id)
    .executeTakeFirstOrThrow()
  const target = dryRun
    ? (await readHypervisorUsage(tx))
        .filter((one) => one.zone === zone && one.drained_at === null && one.name !== name)
        .filter((one) => to.length === 0 || to.includes(one.name))
        .map((one) => ({ ...one, free: one.free - (planned.get(one.name) ?? 0) }))
        .sort((a, b) => b.free - a.free)
        .find(({ free }) => free >= ram)
    : await placeServer(tx, { zoneId: zone_id, ram, only: to, except: name })
  if (target === undefined)
    throw refuse(
      'insufficient_capacity',
      `no ${to.length === 0 ? 'other hypervisor' : `hypervisor of ${to.join(', ')}`} in the zone of ${id} that is not ` +
        `drained has ${ram} MB of RAM free`,
    )
  if (dryRun) planned.set(target.name, (planned.get(target.name) ?? 0) + ram)
  return target.name
}
