/**
 * The actions that the compute system has to carry out, and the effects of their outcome. Each is a row, in the
 * transaction of the change that asks for it.
 *
 *   waiting, givenOut --giveOut, to a hypervisor (action-queue.ts)--> givenOut
 *   waiting, givenOut --succeed--> succeeded
 *   givenOut --fail--> failed
 *   waiting --supersede, by the deletion of the server--> failed
 *
 * Without a compute system (IMDS_API_COMPUTE=none), an action succeeds at once.
 */
import { sql, type RawBuilder, type Selectable } from 'kysely'
import type { Tables } from '../database/tables.ts'
import type { Tx, Db } from '../database/transaction.ts'
import { refuse } from '../model/refusal.ts'
import {
  SERVER_ACTIONS,
  type ActionKind,
  type ActionOutcome,
  type ServerAction,
  type ServerStatus,
} from '../model/server-actions.ts'
import { transitions } from '../model/transitions.ts'
import { HANDSHAKE, wakeHypervisorOf } from './handshake.ts'
import { finishImage } from './images.ts'
import { refuseBeyondLimit } from './limits.ts'
import { moveServer, serverAfterAll, WITHOUT_CONSOLE } from './servers.ts'
import { addRow } from './own-rows.ts'

type Action = Selectable<Tables['compute_actions']>
type OpenState = 'waiting' | 'givenOut'
export type ActionState = OpenState | ActionOutcome

/** The transitions: the states that each can start from, and the state that it leads to. */
const TRANSITIONS = {
  giveOut: { from: ['waiting', 'givenOut'], to: 'givenOut' },
  succeed: { from: ['waiting', 'givenOut'], to: 'succeeded' },
  fail: { from: ['givenOut'], to: 'failed' },
  supersede: { from: ['waiting'], to: 'failed' },
} as const satisfies Readonly<Record<string, { readonly from: readonly OpenState[]; readonly to: ActionState }>>
export type ActionTransition = keyof typeof TRANSITIONS

export const { after: actionAfter } = transitions<ActionState, ActionTransition>(TRANSITIONS)

export function actionState({ outcome, given_out_at }: Pick<Action, 'outcome' | 'given_out_at'>): ActionState {
  return outcome ?? (given_out_at === null ? 'waiting' : 'givenOut')
}

const CONDITION_OF_STATE: Readonly<Record<OpenState, RawBuilder<boolean>>> = {
  waiting: sql`(finished_at is null and given_out_at is null)`,
  givenOut: sql`(finished_at is null and given_out_at is not null)`,
}

/** The only SQL that writes a state. Moves the actions of `which` for which the transition is possible. */
async function move(
  tx: Tx,
  transition: ActionTransition,
  which: RawBuilder<boolean>,
  values: Partial<Pick<Action, 'fault' | 'given_to'>> = {},
): Promise<void> {
  const { from, to } = TRANSITIONS[transition]
  const effect =
    to === 'succeeded' || to === 'failed'
      ? { outcome: to, finished_at: new Date(), console_token: null }
      : { given_out_at: sql<Date>`now()` }
  const states = from.map((state) => CONDITION_OF_STATE[state])
  await tx
    .updateTable('compute_actions')
    .set({ ...effect, ...values })
    .where(which)
    .where(sql<boolean>`(${sql.join(states, sql` or `)})`)
    .execute()
}

const hasIdAmong = (ids: readonly number[]) => sql<boolean>`id = any(${[...ids]})`

/** How actions are carried out (IMDS_API_COMPUTE). */
export type ComputeMode = 'none' | 'reported'
/** The most actions of one server without an outcome. */
const MAX_OPEN_ACTIONS = 16
/** The actions that a deletion of the server makes pointless. A snapshot outlives its server. */
const SUPERSEDED_BY_DELETE = SERVER_ACTIONS.filter((action) => action !== 'snapshot')

/** An action to ask for. `imageId`: the snapshot that is made or deleted. `consoleToken`: opens the console. */
export interface NewAction {
  readonly kind: ActionKind
  readonly imageId?: string | undefined
  readonly consoleToken?: string | undefined
}

export async function requestAction(
  tx: Tx,
  compute: ComputeMode,
  serverId: string,
  { kind, imageId, consoleToken }: NewAction,
): Promise<void> {
  const row = { server_id: serverId, kind, image_id: imageId ?? null }
  if (compute === 'none') {
    await addRow(tx, 'compute_actions', { ...row, outcome: 'succeeded', finished_at: new Date() })
    return applyOutcome(tx, row, 'succeeded')
  }
  await addRow(tx, 'compute_actions', { ...row, console_token: consoleToken ?? null })
  if (kind === 'create' || kind === 'delete') await HANDSHAKE[kind].requested(tx, serverId)
  await wakeHypervisorOf(tx, serverId)
}

/** The state of a server once its waiting actions have succeeded. It decides whether the next action is possible. */
export async function expectedStatus(
  db: Db,
  { id, status }: { readonly id: string; readonly status: ServerStatus },
): Promise<ServerStatus> {
  const waiting = await db
    .selectFrom('compute_actions')
    .select('kind')
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .where('kind', 'in', SERVER_ACTIONS)
    .orderBy('id')
    .$narrowType<{ kind: ServerAction }>()
    .execute()
  return serverAfterAll(
    status,
    waiting.map(({ kind }) => kind),
  )
}

/**
 * Refuses a new action if the server or its account has too many actions without an outcome. The account must be
 * locked.
 */
export async function refuseBeyondOpenActions(tx: Tx, accountId: string, serverId: string): Promise<void> {
  const { count } = await tx
    .selectFrom('compute_actions')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('server_id', '=', serverId)
    .where('finished_at', 'is', null)
    .where('kind', 'in', SERVER_ACTIONS)
    .executeTakeFirstOrThrow()
  if (count >= MAX_OPEN_ACTIONS)
    throw refuse(
      'account_limit_reached',
      `${serverId} has ${count} actions without an outcome, and the most are ${MAX_OPEN_ACTIONS}: ` +
        'try again when some have ended',
    )
  await refuseBeyondLimit(tx, accountId, 'open_actions_limit')
}

export async function giveOut(tx: Tx, ids: readonly number[], hypervisor: string): Promise<void> {
  await move(tx, 'giveOut', hasIdAmong(ids), { given_to: hypervisor })
}

export async function finishAction(
  tx: Tx,
  action: Action,
  outcome: ActionOutcome,
  fault: string | null,
): Promise<void> {
  await move(tx, outcome === 'succeeded' ? 'succeed' : 'fail', hasIdAmong([action.id]), { fault })
  await applyOutcome(tx, action, outcome)
}

/**
 * Ends the waiting actions that a deletion of the server makes pointless, so that it does not wait for them. Actions
 * that a hypervisor has got continue, and so do those before a snapshot, which shows their effect on the disk.
 */
export async function supersedeActions(tx: Tx, serverId: string): Promise<void> {
  const pointless = sql<boolean>`
    server_id = ${serverId} and kind = any(${SUPERSEDED_BY_DELETE}) and not exists (
      select from compute_actions later
      where later.server_id = ${serverId} and later.finished_at is null
        and later.kind = 'snapshot' and later.id > compute_actions.id)`
  await move(tx, 'supersede', pointless, { fault: 'superseded by the deletion of the server' })
}

/** Marks the waiting actions of a server as done without a hypervisor. False: one was already given out. */
export async function cancelActions(tx: Tx, serverId: string): Promise<boolean> {
  const open = await tx
    .selectFrom('compute_actions')
    .select(['id', 'outcome', 'given_out_at'])
    .where('server_id', '=', serverId)
    .where('finished_at', 'is', null)
    .forUpdate()
    .execute()
  if (open.some((action) => actionState(action) !== 'waiting')) return false
  await move(tx, 'succeed', hasIdAmong(open.map(({ id }) => id)))
  return true
}

async function applyOutcome(
  tx: Tx,
  { server_id: id, kind, image_id: imageId }: Pick<Action, 'server_id' | 'kind' | 'image_id'>,
  outcome: ActionOutcome,
): Promise<void> {
  const succeeded = outcome === 'succeeded'
  switch (kind) {
    case 'create':
    case 'delete':
      await HANDSHAKE[kind][outcome](tx, id)
      break
    case 'snapshot':
      await finishImage(tx, imageId!, succeeded ? 'complete' : 'fail')
      break
    case 'delete_image':
      await finishImage(tx, imageId!, succeeded ? 'erase' : 'fail')
      break
    case 'activate_console':
      if (!succeeded)
        await tx.updateTable('servers').set({ console_token_expires: WITHOUT_CONSOLE }).where('id', '=', id).execute()
      break
    default:
      if (succeeded) await moveServer(tx, id, kind)
  }
}
