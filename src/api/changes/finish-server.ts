/** What follows when a server has been published. */
import { freeAddresses } from './allocate.ts'
import { confirmCloudIps } from './cloud-ips.ts'
import { enqueue } from '../database/outbox.ts'
import type { ServerStatus } from '../model/server-actions.ts'
import type { Tx } from '../database/transaction.ts'

/** A server as it was composed for its publish. */
interface Published {
  readonly status: ServerStatus
  readonly awaitsCompute: boolean
  readonly fault: string | null
}

/**
 * Moves a server to its next state, in the transaction that deletes its rows of the outbox. A server that waits for the
 * compute system stays as it is, since the outcome enqueues it again.
 */
export async function finishServer(tx: Tx, id: string, { status, awaitsCompute, fault }: Published): Promise<void> {
  if (status === 'creating' && !awaitsCompute) {
    await tx
      .updateTable('servers')
      .set({ status: 'active', started_at: new Date(), publish_fault: null })
      .where('id', '=', id)
      .where('status', '=', 'creating')
      .execute()
    await confirmCloudIps(tx, id)
  } else if (status === 'deleting' && !awaitsCompute) {
    const interfaces = (await tx.selectFrom('interfaces').select('id').where('server_id', '=', id).execute()).map(
      (row) => row.id,
    )
    await tx.deleteFrom('interfaces').where('server_id', '=', id).execute()
    await freeAddresses(tx, interfaces)
    await tx
      .updateTable('servers')
      .set({ status: 'deleted', deleted_at: new Date(), publish_fault: null, user_data: null })
      .where('id', '=', id)
      .execute()
  } else if (fault !== null) {
    await tx.updateTable('servers').set({ publish_fault: null }).where('id', '=', id).execute()
  }
}

/** Finishes the waiting actions of a server without a hypervisor, unless one has got any of them. False: one has. */
export async function cancelActions(tx: Tx, id: string): Promise<boolean> {
  const waiting = await tx
    .selectFrom('compute_actions')
    .select(['id', 'given_out_at'])
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .forUpdate()
    .execute()
  if (waiting.some((action) => action.given_out_at !== null)) return false
  await tx
    .updateTable('compute_actions')
    .set({ outcome: 'succeeded', finished_at: new Date(), console_token: null })
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .execute()
  return true
}

/** Enqueues every server that the store should have: for a store that was lost or restored. */
export async function enqueueAll(tx: Tx): Promise<number> {
  const servers = await tx.selectFrom('servers').select('id').where('deleted_at', 'is', null).execute()
  if (servers.length > 0)
    await enqueue(
      tx,
      servers.map(({ id }) => id),
    )
  return servers.length
}
