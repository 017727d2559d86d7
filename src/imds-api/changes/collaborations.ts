/**
 * The states of collaborations, and their transitions (the interface, Collaboration transitions). Only an accepted
 * collaboration gives access.
 *
 *   pending --accept--> accepted --end--> ended
 *   pending --reject--> rejected
 *   pending --cancel--> cancelled
 *   pending --resend--> pending
 *
 * The invitee accepts and rejects. The account cancels, and sends the invitation again (invitations.ts). Both end.
 */
import { sql, type RawBuilder, type Selectable, type Updateable } from 'kysely'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import type { CollaborationStatus } from '../model/collaborations.ts'
import { noSuch, refuse } from '../model/refusal.ts'
import { transitions } from '../model/transitions.ts'
import { nextId } from './allocate.ts'
import { setOrigin } from './events.ts'
import { MAX_KEPT_DELETED } from './limits.ts'
import { accountsOf } from './members.ts'
import { addRow, lockRow, setValues } from './own-rows.ts'

type Collaboration = Selectable<Tables['collaborations']>

/** The transitions: the states that each can start from, and the state that it leads to. */
const TRANSITIONS = {
  accept: { from: ['pending'], to: 'accepted' },
  reject: { from: ['pending'], to: 'rejected' },
  resend: { from: ['pending'], to: undefined },
  cancel: { from: ['pending'], to: 'cancelled' },
  end: { from: ['accepted'], to: 'ended' },
} as const
export type CollaborationTransition = keyof typeof TRANSITIONS

export const { after: collaborationAfter, canBecome: collaborationCanBecome } = transitions<
  CollaborationStatus,
  CollaborationTransition
>(TRANSITIONS)

/** The state that follows. Refuses a transition that is not possible. */
export function nextStatus(
  { id, status }: Pick<Collaboration, 'id' | 'status'>,
  transition: CollaborationTransition,
): CollaborationStatus {
  const next = collaborationAfter(status, transition)
  if (next === undefined) throw refuse('resource_conflict', `the collaboration ${id} is ${status}`)
  return next
}

type Effect = Updateable<Tables['collaborations']>

/** The only SQL that writes a status. The row must be locked. Refuses a transition that is not possible. */
export async function moveCollaboration(
  tx: Tx,
  { id, status }: Pick<Collaboration, 'id' | 'status'>,
  transition: CollaborationTransition,
  effect: Effect,
): Promise<void> {
  await setValues(tx, 'collaborations', id, { status: nextStatus({ id, status }, transition), ...effect })
}

/** True for the collaborations of a user, and for the invitations to the user's address, if it is verified. */
export function isOfUser(userId: string): RawBuilder<boolean> {
  return sql`(
    collaborations.user_id = ${userId}
    or (
      collaborations.user_id is null
      and lower(collaborations.email) = (
        select lower(email_address) from users where id = ${userId} and email_verified
      )
    )
  )`
}

export async function acceptInvitation(tx: Tx, userId: string, id: string): Promise<void> {
  const current = await lockOfUser(tx, userId, id)
  if ((await accountsOf(tx, userId)).includes(current.account_id))
    throw refuse('resource_conflict', `you have access to ${current.account_id} already`)
  await moveCollaboration(tx, current, 'accept', acceptedValues(userId))
}

/**
 * Gives a user access: accepts the pending invitation, or creates an accepted collaboration. Undefined: the user has
 * access already, or a collaboration was rejected or ended before. The account must be locked.
 */
export async function grantAccess(
  tx: Tx,
  accountId: string,
  inviterId: string,
  { id: userId, email_address: email }: { readonly id: string; readonly email_address: string },
): Promise<'accepted' | 'created' | undefined> {
  const rows = await tx
    .selectFrom('collaborations')
    .select(['id', 'status'])
    .where('account_id', '=', accountId)
    .where((where) => where.or([where('user_id', '=', userId), sql<boolean>`lower(email) = lower(${email})`]))
    .execute()
  if (rows.some(({ status }) => ['accepted', 'rejected', 'ended'].includes(status))) return undefined
  const pending = rows.find(({ status }) => status === 'pending')
  if (pending !== undefined) {
    await moveCollaboration(tx, pending, 'accept', acceptedValues(userId))
    return 'accepted'
  }
  const fresh = { id: await nextId(tx, 'col'), account_id: accountId, inviter_id: inviterId, email } as const
  await addRow(tx, 'collaborations', {
    ...fresh,
    ...acceptedValues(userId),
    role: 'admin',
    status: 'accepted',
  })
  return 'created'
}

/**
 * The account, user and inviter of a row of `collaborations`, as they are now. A finished one keeps them as they were
 * when it finished.
 */
export const PARTIES: RawBuilder<object> = sql`jsonb_build_object(
  'account', (select jsonb_build_object('id', id, 'name', name, 'status', status)
    from accounts where accounts.id = collaborations.account_id),
  'user', ${userNow('user_id')}, 'inviter', ${userNow('inviter_id')})`

function userNow(column: 'user_id' | 'inviter_id'): RawBuilder<object> {
  return sql`(select jsonb_build_object(
    'id', id, 'name', name, 'email_address', email_address, 'two_factor', totp_secret is not null)
    from users where users.id = ${sql.ref(`collaborations.${column}`)})`
}

const acceptedValues = (userId: string) => ({ user_id: userId, started_at: new Date() })
/** Keeps the names of both parties as they are now. */
const finishedValues = (): Effect => ({ finished_at: new Date(), parties: PARTIES })

/** Rejects an invitation to the user. The event has nothing of the user: the account must not learn who it is. */
export async function rejectInvitation(tx: Tx, userId: string, id: string): Promise<void> {
  await sql`select ${setOrigin({ actor: 'invitee', requestId: '', key: '' })}`.execute(tx)
  await moveCollaboration(tx, await lockOfUser(tx, userId, id), 'reject', finishedValues())
}

export async function leaveAccount(tx: Tx, userId: string, id: string): Promise<void> {
  await moveCollaboration(tx, await lockOfUser(tx, userId, id), 'end', finishedValues())
}

/** Cancels an invitation of the account, or ends an accepted collaboration. */
export async function removeCollaboration(tx: Tx, accountId: string, id: string): Promise<void> {
  const current = await lockRow(tx, 'collaboration', accountId, id)
  await moveCollaboration(tx, current, current.status === 'accepted' ? 'end' : 'cancel', finishedValues())
}

async function lockOfUser(tx: Tx, userId: string, id: string): Promise<Collaboration> {
  const own = tx.selectFrom('collaborations').selectAll().where('id', '=', id).where(isOfUser(userId))
  return own.forUpdate().executeTakeFirstOrThrow(() => noSuch('collaboration', id))
}

/**
 * Deletes the oldest finished collaborations beyond MAX_KEPT_DELETED. The last rejected or ended one of each address
 * stays: without it, the region file would give the user access again.
 */
export async function purgeFinished(tx: Tx, accountId: string): Promise<void> {
  await sql`
    delete from collaborations where id in (
      select id from collaborations finished
      where account_id = ${accountId} and finished_at is not null and (
        status = 'cancelled' or exists (
          select from collaborations later
          where later.account_id = ${accountId}
            and later.status in ('rejected', 'ended')
            and lower(later.email) = lower(finished.email)
            and later.finished_at > finished.finished_at
        )
      )
      order by finished_at desc offset ${MAX_KEPT_DELETED}
    )`.execute(tx)
}
