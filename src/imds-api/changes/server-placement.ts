/** Changes of a server by the compute system: its hypervisor, live migrations, and the seal of its user-data. */
import type { Selectable } from 'kysely'
import { fieldFault, noSuch, refuse } from '../model/refusal.ts'
import type { AccountChanges } from './account-changes.ts'
import { hasActionInProgress } from './action-queue.ts'
import { wakeHypervisor } from './handshake.ts'
import { markChanged } from '../database/outbox.ts'
import { lockHypervisor } from './hypervisors.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Db } from '../database/transaction.ts'

export interface PlacementParts {
  readonly db: Db
  readonly accounts: AccountChanges
}
const COLUMNS = ['id', 'status', 'hypervisor', 'migrating_to', 'sealed_at', 'revision'] as const
/** Where a server runs. `revision`: that of its record, for imdsctl wait. */
export type Placement = Readonly<Pick<Selectable<Tables['servers']>, (typeof COLUMNS)[number]>>
/** True for a hypervisor that the caller may act for. */
export type MayActFor = (hypervisor: string) => boolean

/** Finds a server if the caller may act for its hypervisor, or for the one to which it migrates. */
export async function findPlacement(db: Db, id: string, mayActFor: MayActFor): Promise<Placement> {
  const row = await db
    .selectFrom('servers')
    .select(COLUMNS)
    .where('id', '=', id)
    .where('deleted_at', 'is', null)
    .executeTakeFirst()
  if (row === undefined || ![row.hypervisor, row.migrating_to].some((name) => name !== null && mayActFor(name)))
    throw noSuch('server', id)
  return row
}

/**
 * Begins a live migration: the record names both hypervisors, and no action is given out until its end. A repeated
 * request changes nothing.
 */
export async function beginLiveMigration(
  parts: PlacementParts & { readonly retrySeconds: number },
  id: string,
  to: string,
  mayActFor: MayActFor,
): Promise<Placement> {
  return changePlacement(parts, id, mayActFor, async (tx, { status, hypervisor, migrating_to: current }) => {
    if (current === to) return {}
    if (current !== null) throw refuse('resource_conflict', `${id} migrates to ${current}: end or cancel that first`)
    if (status !== 'active' && status !== 'inactive') throw refuse('resource_conflict', `${id} is ${status}`)
    if (await hasActionInProgress(tx, id, parts.retrySeconds))
      throw refuse('resource_conflict', `${hypervisor} carries out an action of ${id}: report its outcome first`)
    await lockTarget(tx, id, hypervisor, to)
    return { migrating_to: to }
  })
}

/** Locks the hypervisor to which a server migrates. Refuses if it has no room, or is in another zone. */
async function lockTarget(tx: Tx, id: string, from: string, to: string): Promise<void> {
  const { zone_id, ram } = await tx
    .selectFrom('servers')
    .innerJoin('server_types', 'server_types.id', 'servers.server_type_id')
    .select(['zone_id', 'ram'])
    .where('servers.id', '=', id)
    .executeTakeFirstOrThrow()
  const target = await lockHypervisor(tx, to, 'wait')
  if (target !== undefined && target.drained_at !== null)
    throw refuse('resource_conflict', `${to} is drained: name another hypervisor`)
  if (target?.zone_id !== zone_id || to === from)
    throw refuse(
      'unprocessable_entity',
      fieldFault('to', 'not_allowed', `to: ${to} is not another hypervisor of the zone of ${id}`),
    )
  if (target.free < ram)
    throw refuse('insufficient_capacity', `${to} has ${target.free} MB of RAM free, and ${id} needs ${ram}`)
}

/** Ends a live migration: the server is on the other hypervisor. */
export async function endLiveMigration(parts: PlacementParts, id: string, mayActFor: MayActFor): Promise<Placement> {
  return changePlacement(parts, id, mayActFor, async (tx, { migrating_to: to }) => {
    if (to === null) throw refuse('resource_conflict', `${id} does not migrate`)
    await wakeHypervisor(tx, to)
    return { hypervisor: to, migrating_to: null }
  })
}

/** Cancels a live migration: the server stays where it is. */
export async function cancelLiveMigration(parts: PlacementParts, id: string, mayActFor: MayActFor): Promise<Placement> {
  return changePlacement(parts, id, mayActFor, async (tx, { hypervisor, migrating_to: to }) => {
    if (to === null) throw refuse('resource_conflict', `${id} does not migrate`)
    await wakeHypervisor(tx, hypervisor)
    return { migrating_to: null }
  })
}

/**
 * Seals the user-data: from the next revision on the guest does not get it. A repeated seal keeps the time of the
 * first.
 */
export async function sealUserData(parts: PlacementParts, id: string, mayActFor: MayActFor): Promise<Placement> {
  return changePlacement(parts, id, mayActFor, (_change, { sealed_at }) =>
    Promise.resolve(sealed_at === null ? { sealed_at: new Date() } : {}),
  )
}

type Values = Partial<Pick<Placement, 'hypervisor' | 'migrating_to' | 'sealed_at'>>

/**
 * Changes a server and its record in one transaction, which waits for other changes of its account. `columnsFor`
 * returns the columns to change, if any.
 */
export async function changePlacement(
  { db, accounts }: PlacementParts,
  id: string,
  mayActFor: MayActFor,
  columnsFor: (tx: Tx, server: Placement) => Promise<Values>,
): Promise<Placement> {
  const found = await db
    .selectFrom('servers')
    .select('account_id')
    .where('id', '=', id)
    .executeTakeFirstOrThrow(() => noSuch('server', id))
  return accounts.commitInAnyState(found.account_id, async (tx) => {
    await tx.selectFrom('servers').select('id').where('id', '=', id).forNoKeyUpdate().execute()
    const server = await findPlacement(tx, id, mayActFor)
    const values = await columnsFor(tx, server)
    if (Object.keys(values).length > 0) {
      await tx.updateTable('servers').set(values).where('id', '=', id).execute()
      await markChanged(tx, [id])
    }
    return tx.selectFrom('servers').select(COLUMNS).where('id', '=', id).executeTakeFirstOrThrow()
  })
}
