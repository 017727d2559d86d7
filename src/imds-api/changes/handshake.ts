/**
 * How a server becomes active, and how it goes. Three parties take turns, each in its own transaction, with two queues
 * between them: the outbox (database/outbox.ts) and the actions (actions.ts).
 *
 *   client        POST       status `creating`; an action `create`; a row in the outbox
 *   publisher     finishPublish, the record is in the store: the row goes, and the hypervisor is woken
 *   hypervisor    gets the action (AWAITS_PUBLISH holds it until then), makes the machine and reports: a row again
 *   publisher     finishPublish, no action is open: status `active`, and the reserved cloud IPs are mapped
 *
 *   client        DELETE     status `deleting`; an action `delete`; a row, with a new revision
 *   publisher     finishPublish: the record stays, since the guest reads it until its machine is gone
 *   hypervisor    gets the action, deletes the machine and reports: a row again
 *   publisher     finishPublish, the record is out of the store: status `deleted`, and the addresses are free
 *
 * If the hypervisor fails, the server is `failed`. With IMDS_API_COMPUTE=none, an action has succeeded when it is
 * requested, so the publisher's first turn is its last one.
 */
import { sql } from 'kysely'
import { enqueue, markChanged } from '../database/outbox.ts'
import type { Tx } from '../database/transaction.ts'
import type { ActionOutcome, ServerStatus } from '../model/server-actions.ts'
import { freeAddresses } from './allocate.ts'
import { atServer, moveCloudIps } from './cloud-ips.ts'
import { setValues } from './own-rows.ts'
import { moveServer } from './servers.ts'

type Step = (tx: Tx, id: string) => Promise<unknown>
const enqueueServer: Step = (tx, id) => enqueue(tx, [id])
const markServer: Step = (tx, id) => markChanged(tx, [id])

/** What happens to a server when these actions are requested, and when they end. */
export const HANDSHAKE: Readonly<Record<'create' | 'delete', Readonly<Record<'requested' | ActionOutcome, Step>>>> = {
  create: { requested: enqueueServer, succeeded: enqueueServer, failed: failCreate },
  delete: { requested: markServer, succeeded: markServer, failed: (tx, id) => moveServer(tx, id, 'failDelete') },
}

/** The compute system could not create a server. Its cloud IPs are free again. */
async function failCreate(tx: Tx, id: string): Promise<void> {
  if (await moveServer(tx, id, 'failCreate')) await moveCloudIps(tx, 'release', atServer(id))
  await markChanged(tx, [id])
}

/**
 * True for the actions of a server that was never published, and for its creation until the present record is. The store
 * may refuse a record, because another server has its id or its address (after a restore of the database). A subquery
 * that PostgreSQL does not hash: it would read the whole table.
 */
export const AWAITS_PUBLISH = sql<boolean>`(
  not servers.is_published
  or action.kind = 'create'
    and (select true from outbox where outbox.server_id = servers.id limit 1) is not null)`

/**
 * PostgreSQL's channel that wakes the waiting requests of a hypervisor in all processes. The payload is the name of the
 * hypervisor.
 */
export const COMPUTE_CHANNEL = 'imds_compute'

/** Wakes the requests of a hypervisor, in all processes, when the transaction commits. */
export async function wakeHypervisor(tx: Tx, hypervisor: string): Promise<void> {
  await sql`select pg_notify(${COMPUTE_CHANNEL}, ${hypervisor})`.execute(tx)
}

/** The same, for the hypervisor of a server. */
export async function wakeHypervisorOf(tx: Tx, id: string): Promise<void> {
  await sql`select pg_notify(${COMPUTE_CHANNEL}, hypervisor) from servers where id = ${id}`.execute(tx)
}

interface Published {
  readonly status: ServerStatus
  readonly awaitsCompute: boolean
  readonly isPublished: boolean
  readonly fault: string | null
}

/**
 * Moves a server after its record was written or removed, in the transaction that deletes its rows of the outbox. A
 * server that waits for the compute system stays as it is: the outcome enqueues it again.
 */
export async function finishPublish(
  tx: Tx,
  id: string,
  { status, awaitsCompute, isPublished, fault }: Published,
): Promise<void> {
  if (fault !== null || !isPublished) await setValues(tx, 'servers', id, { publish_fault: null, is_published: true })
  if (awaitsCompute) return wakeHypervisorOf(tx, id)
  if (status === 'creating') {
    await moveServer(tx, id, 'publish')
    await moveCloudIps(tx, 'confirm', atServer(id))
  } else if (status === 'deleting') {
    const interfaces = await tx.deleteFrom('interfaces').where('server_id', '=', id).returning('id').execute()
    await freeAddresses(
      tx,
      interfaces.map((one) => one.id),
    )
    await tx.deleteFrom('server_keys').where('server_id', '=', id).execute()
    await moveServer(tx, id, 'remove')
  }
}

/** The beginning of the fault of a server whose id the store has given to another. */
export const OTHER_INCARNATION = 'incarnation: '

/** Whether what the store has of the id of a server is its own. */
export const OWNS_ID = sql<boolean>`(
  servers.is_published and coalesce(not starts_with(servers.publish_fault, ${sql.lit(OTHER_INCARNATION)}), true))`
