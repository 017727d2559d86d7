/**
 * Invitations by email address: the users that an account may invite, how often, and which invitations are unsent
 * (mail/sender.ts). An invitation is a pending collaboration.
 */
import { sql, type RawBuilder } from 'kysely'
import type { Tx } from '../database/transaction.ts'
import type { Role } from '../model/collaborations.ts'
import { isEmailAddress } from '../model/email-address.ts'
import { fieldFault, Refusal, refuse } from '../model/refusal.ts'
import type { Quota } from '../../limits/rate-limit-headers.ts'
import { nextId } from './allocate.ts'
import { purgeFinished, moveCollaboration, nextStatus } from './collaborations.ts'
import { refuseBeyondLimit } from './limits.ts'
import { accountsOf } from './members.ts'
import { addRow, lockRow } from './own-rows.ts'

/**
 * The most invitations of an account that are pending or younger than an hour. Cancelled ones count too, so cancelling
 * does not allow more mail.
 */
const MAX_INVITATIONS = 100

/**
 * Invites an address, and returns the id. `inviterId` null: an API client asks, so the owner of the account invites.
 */
export async function invite(
  tx: Tx,
  accountId: string,
  inviterId: string | null,
  { email, role }: { readonly email: string; readonly role: Role },
): Promise<string> {
  if (!isEmailAddress(email))
    throw refuse(
      'unprocessable_entity',
      fieldFault('email', 'malformed', 'email must be an address such as ada@example.com'),
    )
  await refuseInvited(tx, accountId, email)
  if ((await countInvitations(tx, accountId)) >= MAX_INVITATIONS)
    throw refuse(
      'account_limit_reached',
      `the account has ${MAX_INVITATIONS} invitations that are pending or younger than an hour: ` +
        'cancel old ones, or wait',
    )
  await refuseBeyondLimit(tx, accountId, 'collaborations_limit')
  const account = tx.selectFrom('accounts').select('owner_id').where('id', '=', accountId)
  const { owner_id: owner } = await account.executeTakeFirstOrThrow()
  await purgeFinished(tx, accountId)
  const id = await nextId(tx, 'col')
  const fresh = { id, account_id: accountId, inviter_id: inviterId ?? owner, email, role, status: 'pending' } as const
  await addRow(tx, 'collaborations', fresh)
  return id
}

/** Refuses an address that is invited, or whose user has access. */
async function refuseInvited(tx: Tx, accountId: string, email: string): Promise<void> {
  const current = await tx
    .selectFrom('collaborations')
    .select(['id', 'status'])
    .where('account_id', '=', accountId)
    .where('status', 'in', ['pending', 'accepted'])
    .where(sql<boolean>`lower(email) = lower(${email})`)
    .executeTakeFirst()
  if (current !== undefined)
    throw refuse('resource_conflict', `${email} has the ${current.status} collaboration ${current.id} already`)
  const user = await tx
    .selectFrom('users')
    .select('id')
    .where(sql<boolean>`lower(email_address) = lower(${email})`)
    .executeTakeFirst()
  if (user !== undefined && (await accountsOf(tx, user.id)).includes(accountId))
    throw refuse('resource_conflict', `${email} has access to the account already`)
}

/** The invitations of an account that are pending or younger than an hour. */
async function countInvitations(tx: Tx, accountId: string): Promise<number> {
  const { count } = await tx
    .selectFrom('collaborations')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('account_id', '=', accountId)
    .where((where) => where.or([where('status', '=', 'pending'), sql<boolean>`created_at > now() - interval '1 hour'`]))
    .executeTakeFirstOrThrow()
  return count
}

/** The most resends of one invitation in an hour. */
const MAX_RESENDS = 5
const HOUR_MS = 3_600_000

/** Marks an invitation as unsent, and returns the rest of its rate limit. */
export async function resendInvitation(tx: Tx, accountId: string, id: string): Promise<Quota> {
  const current = await lockRow(tx, 'collaboration', accountId, id)
  const now = new Date()
  nextStatus(current, 'resend')
  const resends = addResend(current.resends, now)
  if (resends === undefined) {
    const text = `${id} can be sent again ${MAX_RESENDS} times in an hour: try again later`
    const quota = quotaOf(current.resends, 0, now)
    throw new Refusal('too_many_requests', [text], { retrySeconds: quota.retrySeconds, quota })
  }
  await moveCollaboration(tx, current, 'resend', { invited_at: null, send_at: null, resends })
  return quotaOf(resends, MAX_RESENDS - resends.length, now)
}

function quotaOf(resends: readonly Date[], remaining: number, now: Date): Quota {
  return {
    name: 'resends',
    quota: MAX_RESENDS,
    windowSeconds: HOUR_MS / 1000,
    remaining,
    retrySeconds: resendWaitSeconds(resends, now),
  }
}

/** The times of the resends in the last hour, with `now` added. Undefined: the limit is reached. */
export function addResend(resends: readonly Date[], now: Date): Date[] | undefined {
  const recent = resends.filter((one) => one.getTime() > now.getTime() - HOUR_MS)
  return recent.length >= MAX_RESENDS ? undefined : [...recent, now]
}

/** The seconds after which `addResend` allows another resend. */
export function resendWaitSeconds(resends: readonly Date[], now: Date): number {
  const oldest = resends.at(-MAX_RESENDS)?.getTime() ?? -Infinity
  return Math.max(0, Math.ceil((oldest + HOUR_MS - now.getTime()) / 1000))
}

/** True for an invitation that waits to be sent. */
export const isUnsent: RawBuilder<boolean> = sql`
  collaborations.status = 'pending' and collaborations.invited_at is null`
