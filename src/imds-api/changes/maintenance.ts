/** Maintenance that is announced to guests: the events in the record of a server. */
import type { EventChange } from '../../metadata/event-options.ts'
import { changeEvents, type MaintenanceEvent } from '../../metadata/events.ts'
import { markChanged } from '../database/outbox.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { noSuch, refuse } from '../model/refusal.ts'
import { MAX_MAINTENANCE_EVENTS_BYTES } from './record-limits.ts'

/** The maintenance events of a server. Refuses if there is no such server. */
export async function maintenanceEventsOf(db: Db, id: string): Promise<readonly MaintenanceEvent[]> {
  const server = await selectEvents(db, id).executeTakeFirstOrThrow(() => noSuch('server', id))
  return server.events
}

/** Changes the maintenance events of a server, and publishes its record. Refuses an invalid change. */
export async function changeMaintenanceEvents(tx: Tx, id: string, change: EventChange): Promise<void> {
  const server = await selectEvents(tx, id)
    .forNoKeyUpdate()
    .executeTakeFirstOrThrow(() => noSuch('server', id))
  const changed = changeEvents(server.events, change)
  if (!changed.ok) throw refuse('unprocessable_entity', changed.faults.join('; '))
  const events = JSON.stringify(changed.value)
  if (Buffer.byteLength(events) > MAX_MAINTENANCE_EVENTS_BYTES)
    throw refuse(
      'unprocessable_entity',
      `the events of ${id} would take more than ${MAX_MAINTENANCE_EVENTS_BYTES} bytes: give shorter descriptions`,
    )
  await tx.updateTable('servers').set({ events }).where('id', '=', id).execute()
  await markChanged(tx, [id])
}

function selectEvents(db: Db, id: string) {
  return db.selectFrom('servers').select('events').where('id', '=', id).where('deleted_at', 'is', null)
}
