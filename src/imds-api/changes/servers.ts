/**
 * The states of servers, and their transitions.
 *
 *   creating --publish, once its record is in the store--> active --stop, shutdown--> inactive --start--> active
 *   creating --failCreate--> failed
 *   creating, active, inactive, failed, unavailable --delete--> deleting
 *   deleting --remove, once its record is out of the store--> deleted
 *   deleting --failDelete--> failed
 *
 * handshake.ts has when `publish` and `remove` are made, server-requests.ts the changes by clients.
 */
import { sql } from 'kysely'
import type { Tx } from '../database/transaction.ts'
import type { ServerAction, ServerStatus } from '../model/server-actions.ts'
import { transitions, type Transition } from '../model/transitions.ts'

export type ServerTransition = ServerAction | 'publish' | 'failCreate' | 'delete' | 'failDelete' | 'remove'

/** The transitions. Those of actions are made once the compute system has carried them out. */
export const SERVER_TRANSITIONS: Readonly<Record<ServerTransition, Transition<ServerStatus>>> = {
  publish: { from: ['creating'], to: 'active' },
  failCreate: { from: ['creating'], to: 'failed' },
  start: { from: ['inactive'], to: 'active' },
  stop: { from: ['active'], to: 'inactive' },
  shutdown: { from: ['active'], to: 'inactive' },
  reboot: { from: ['active'], to: undefined },
  reset: { from: ['active'], to: undefined },
  snapshot: { from: ['active', 'inactive'], to: undefined },
  activate_console: { from: ['active'], to: undefined },
  delete: { from: ['creating', 'active', 'inactive', 'failed', 'unavailable'], to: 'deleting' },
  failDelete: { from: ['deleting'], to: 'failed' },
  remove: { from: ['deleting'], to: 'deleted' },
}

export const { after: serverAfter, canBecome: serverCanBecome } = transitions(SERVER_TRANSITIONS)

/** The state after actions that succeed, in their order. Those that are not possible leave it as it is. */
export function serverAfterAll(status: ServerStatus, actions: readonly ServerAction[]): ServerStatus {
  return actions.reduce((now, action) => serverAfter(now, action) ?? now, status)
}

/** The only SQL that writes a status. Moves a server. False: the transition is not possible. */
export async function moveServer(tx: Tx, id: string, transition: ServerTransition): Promise<boolean> {
  const { from, to } = SERVER_TRANSITIONS[transition]
  if (to === undefined) return false
  const { numUpdatedRows } = await tx
    .updateTable('servers')
    .set({ status: to, ...effectOf(to) })
    .where('id', '=', id)
    .where('status', 'in', from)
    .executeTakeFirst()
  return numUpdatedRows > 0n
}

/** The console is closed, unless a waiting action opens it again. */
export const WITHOUT_CONSOLE = sql<Date | null>`
  case when exists (
    select from compute_actions
    where server_id = servers.id and kind = 'activate_console' and finished_at is null
  ) then console_token_expires end`

function effectOf(status: ServerStatus) {
  switch (status) {
    case 'active':
      return { started_at: new Date() }
    case 'inactive':
      return { console_token_expires: WITHOUT_CONSOLE }
    case 'deleting':
      return { console_token_expires: null }
    case 'deleted':
      return { deleted_at: new Date(), user_data: null, tags: '{}', events: '[]', metadata_options: null }
    default:
      return {}
  }
}
