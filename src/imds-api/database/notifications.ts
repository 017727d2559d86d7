/** Listens on a channel of PostgreSQL, on a connection of its own, and listens again when that breaks. */
import type pg from 'pg'
import { PeriodicTask } from '../../runtime/periodic-task.ts'

const RETRY_MS = 1_000

/**
 * One listener. `onNotification` is called for each notification, and with an empty payload after each connect, because
 * some may have been lost before.
 */
export class NotificationListener extends PeriodicTask {
  constructor(connect: () => Promise<pg.Client>, channel: string, onNotification: (payload: string) => void) {
    super(
      async (signal) => {
        await listen(await connect(), channel, onNotification, signal)
      },
      RETRY_MS,
      () => undefined, // the database is unreachable: the parts that query it report that
    )
  }
}

/** Ends with the connection, which the signal ends. */
async function listen(
  client: pg.Client,
  channel: string,
  onNotification: (payload: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const end = () => client.end().catch(() => undefined) // closed already
  const ended = new Promise<void>((resolve) => {
    client.on('end', resolve).on('error', () => resolve())
  })
  client.on('notification', ({ payload = '' }) => onNotification(payload))
  const abort = () => void end()
  signal.addEventListener('abort', abort)
  try {
    await client.query(`listen ${channel}`)
    onNotification('')
    if (!signal.aborted) await ended // aborted before the listener was added: nothing ends the connection
  } finally {
    signal.removeEventListener('abort', abort)
    await end()
  }
}
