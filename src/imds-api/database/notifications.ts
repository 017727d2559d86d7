/** Listens on a channel of PostgreSQL, on a connection of its own, and listens again when that breaks. */
import { once } from 'node:events'
import type pg from 'pg'
import { PeriodicTask } from '../../runtime/periodic-task.ts'

const RETRY_MS = 1_000

/**
 * Builds a listener. `onNotification` is called for each notification, and with an empty payload after each connect,
 * because some may have been lost before.
 */
export function buildListener(
  connect: () => Promise<pg.Client>,
  channel: string,
  onNotification: (payload: string) => void,
): PeriodicTask {
  const listen = async (signal: AbortSignal) => {
    const client = await connect()
    try {
      client.on('notification', ({ payload = '' }) => onNotification(payload))
      const ended = once(client, 'end', { signal }) // rejects at an error, and at a stop
      await Promise.race([client.query(`listen ${channel}`), ended])
      onNotification('')
      await ended
    } finally {
      await client.end().catch(() => undefined) // closed already
    }
  }
  return new PeriodicTask(listen, RETRY_MS, () => undefined) // unreachable: the parts that query the database report that
}
