/** What follows when a server has been published. */
import { freeAddresses } from './allocate.ts'
import { enqueue } from './outbox.ts'
import type { ServerStatus } from './tables.ts'
import type { Change } from './transaction.ts'

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
export async function finishServer(
  change: Change,
  id: string,
  { status, awaitsCompute, fault }: Published,
): Promise<void> {
  if (status === 'creating' && !awaitsCompute) {
    await change
      .updateTable('servers')
      .set({ status: 'active', started_at: new Date(), publish_fault: null })
      .where('id', '=', id)
      .where('status', '=', 'creating')
      .execute()
    await change
      .updateTable('cloud_ips')
      .set({ status: 'mapped' })
      .where('status', '=', 'reserved')
      .where('interface_id', 'in', change.selectFrom('interfaces').select('id').where('server_id', '=', id))
      .execute()
  } else if (status === 'deleting' && !awaitsCompute) {
    const interfaces = (await change.selectFrom('interfaces').select('id').where('server_id', '=', id).execute()).map(
      (row) => row.id,
    )
    await change.deleteFrom('interfaces').where('server_id', '=', id).execute()
    await freeAddresses(change, interfaces)
    await change
      .updateTable('servers')
      .set({ status: 'deleted', deleted_at: new Date(), publish_fault: null, user_data: null })
      .where('id', '=', id)
      .execute()
  } else if (fault !== null) {
    await change.updateTable('servers').set({ publish_fault: null }).where('id', '=', id).execute()
  }
}

/** Finishes the waiting actions of a server without a hypervisor, unless one has got any of them. False: one has. */
export async function cancelActions(change: Change, id: string): Promise<boolean> {
  const waiting = await change
    .selectFrom('compute_actions')
    .select(['id', 'given_out_at'])
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .forUpdate()
    .execute()
  if (waiting.some((action) => action.given_out_at !== null)) return false
  await change
    .updateTable('compute_actions')
    .set({ outcome: 'succeeded', finished_at: new Date(), console_token: null })
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .execute()
  return true
}

/** Enqueues every server that the store should have: for a store that was lost or restored. */
export async function enqueueAll(change: Change): Promise<number> {
  const servers = await change.selectFrom('servers').select('id').where('deleted_at', 'is', null).execute()
  if (servers.length > 0)
    await enqueue(
      change,
      servers.map(({ id }) => id),
    )
  return servers.length
}
