/**
 * The actions that the compute system has to carry out, and the effects of their outcome. Every action is a row, in
 * the transaction of the change that asks for it. IMDS_API_COMPUTE says what happens then:
 *
 *   none       the action succeeds at once
 *   reported   the action waits until its outcome is reported
 */
import { sql, type Selectable } from 'kysely'
import {
  OPEN_ACTIONS_MAX,
  SERVER_ACTIONS,
  statusAfter,
  SUPERSEDED_BY_DELETE,
  type ServerAction,
} from '../model/server-actions.ts'
import { refuse } from '../model/refusal.ts'
import { cancelReservations } from './cloud-ips.ts'
import { finishImage } from './images.ts'
import { refuseBeyondLimit } from './limits.ts'
import { enqueue, markChanged } from '../database/outbox.ts'
import type { Tables } from '../database/tables.ts'
import type { ActionKind, Outcome, ServerStatus } from '../model/server-actions.ts'
import type { Tx, Reader } from '../database/transaction.ts'

/** How actions are carried out (IMDS_API_COMPUTE). */
export type ComputeMode = 'none' | 'reported'
/**
 * PostgreSQL's channel that wakes the waiting requests of a hypervisor in all processes. The payload is the name of the
 * hypervisor.
 */
export const COMPUTE_CHANNEL = 'imds_compute'

/** An action to ask for. `imageId`: the snapshot that is made or deleted. `consoleToken`: opens the console. */
export interface NewAction {
  readonly kind: ActionKind
  readonly imageId?: string
  readonly consoleToken?: string
}

/** Asks for an action on a server. */
export async function requestAction(
  tx: Tx,
  compute: ComputeMode,
  serverId: string,
  { kind, imageId, consoleToken }: NewAction,
): Promise<void> {
  const row = { server_id: serverId, kind, image_id: imageId ?? null }
  if (compute === 'none') {
    await tx
      .insertInto('compute_actions')
      .values({ ...row, outcome: 'succeeded', finished_at: new Date() })
      .execute()
    await applyOutcome(tx, row, 'succeeded')
    return
  }
  await tx
    .insertInto('compute_actions')
    .values({ ...row, console_token: consoleToken ?? null })
    .execute()
  // Guests read the record while the compute system works: it is published now, and again afterwards.
  if (kind === 'create') await enqueue(tx, [serverId])
  if (kind === 'delete') await markChanged(tx, [serverId])
  await sql`select pg_notify(${COMPUTE_CHANNEL}, hypervisor) from servers where id = ${serverId}`.execute(tx)
}

/** The state of a server once its waiting actions have succeeded. It decides whether the next action is possible. */
export async function expectedStatus(
  database: Reader,
  { id, status }: { readonly id: string; readonly status: ServerStatus },
): Promise<ServerStatus> {
  const waiting = await database
    .selectFrom('compute_actions')
    .select('kind')
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .orderBy('id')
    .execute()
  return statusAfter(
    status,
    waiting.map(({ kind }) => kind),
  )
}

/**
 * Refuses one more action of a client if the server, or its account, has as many without an outcome as it may have. The
 * account must be locked.
 */
export async function refuseBeyondOpenActions(tx: Tx, accountId: string, serverId: string): Promise<void> {
  const { count } = await tx
    .selectFrom('compute_actions')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('server_id', '=', serverId)
    .where('finished_at', 'is', null)
    .where('kind', 'in', [...SERVER_ACTIONS])
    .executeTakeFirstOrThrow()
  if (count >= OPEN_ACTIONS_MAX)
    throw refuse(
      'account_limit_reached',
      `${serverId} has ${String(count)} actions without an outcome, and the most are ${String(OPEN_ACTIONS_MAX)}: try again when some have ended`,
    )
  await refuseBeyondLimit(tx, accountId, 'open_actions_limit')
}

/**
 * Ends the waiting actions that the deletion of a server makes pointless, as failed, so that the deletion does not wait
 * for them. An action that a hypervisor has got goes on, and so do those before a snapshot: it shows the disk as they
 * leave it.
 */
export async function supersedeActions(tx: Tx, serverId: string): Promise<void> {
  await sql`
    update compute_actions set outcome = 'failed', fault = 'superseded by the deletion of the server', finished_at = now(), console_token = null
    where server_id = ${serverId} and finished_at is null and given_out_at is null and kind = any(${[...SUPERSEDED_BY_DELETE]})
      and not exists (select from compute_actions later where later.server_id = ${serverId} and later.finished_at is null and later.kind = 'snapshot' and later.id > compute_actions.id)`.execute(
    tx,
  )
}

/** Changes what follows from the outcome of an action, in the transaction that records it. */
export async function applyOutcome(
  tx: Tx,
  action: Pick<Selectable<Tables['compute_actions']>, 'server_id' | 'kind' | 'image_id'>,
  outcome: Outcome,
): Promise<void> {
  const { server_id: id, kind, image_id: imageId } = action
  const succeeded = outcome === 'succeeded'
  switch (kind) {
    // The server becomes active, or is deleted, when its record has been published: see finish-server.ts.
    case 'create':
      await (succeeded ? enqueue(tx, [id]) : failCreate(tx, id))
      break
    case 'delete':
      if (succeeded) await markChanged(tx, [id])
      else await tx.updateTable('servers').set({ status: 'failed' }).where('id', '=', id).execute()
      break
    case 'snapshot':
      await finishImage(tx, imageId!, succeeded ? 'complete' : 'fail')
      break
    case 'delete_image':
      await finishImage(tx, imageId!, succeeded ? 'erase' : 'fail')
      break
    case 'activate_console':
      if (!succeeded)
        await tx.updateTable('servers').set({ console_token_expires: null }).where('id', '=', id).execute()
      break
    default:
      if (succeeded) await moveServer(tx, id, kind)
  }
}

/** Moves a server to the state that follows from an action, unless it is being deleted meanwhile. */
async function moveServer(tx: Tx, id: string, kind: ServerAction): Promise<void> {
  const { status } = await tx
    .selectFrom('servers')
    .select('status')
    .where('id', '=', id)
    .forUpdate()
    .executeTakeFirstOrThrow()
  const next = statusAfter(status, [kind])
  if (status === 'active' && next !== 'active') await closeConsole(tx, id)
  if (next !== status)
    await tx
      .updateTable('servers')
      .set({ status: next, ...(next === 'active' && { started_at: new Date() }) })
      .where('id', '=', id)
      .execute()
}

/** Closes the console of a server, unless a waiting action opens it again. */
async function closeConsole(tx: Tx, id: string): Promise<void> {
  const waiting = tx
    .selectFrom('compute_actions')
    .select('id')
    .where('server_id', '=', id)
    .where('kind', '=', 'activate_console')
    .where('finished_at', 'is', null)
  await tx
    .updateTable('servers')
    .set({ console_token_expires: null })
    .where('id', '=', id)
    .where((where) => where.not(where.exists(waiting)))
    .execute()
}

async function failCreate(tx: Tx, id: string): Promise<void> {
  await tx
    .updateTable('servers')
    .set({ status: 'failed' })
    .where('id', '=', id)
    .where('status', '=', 'creating')
    .execute()
  await cancelReservations(tx, id)
  await markChanged(tx, [id])
}
