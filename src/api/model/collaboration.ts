/**
 * The states of a collaboration (docs/accounts.md#collaborations):
 *
 *     POST --> pending --accept--> accepted --remove or leave--> ended
 *                |  \
 *                |   `--reject--> rejected
 *                `--remove--> cancelled
 *
 * The invitee accepts, rejects and leaves; the account removes. Only an accepted collaboration gives access.
 */

/** Every state. */
export const COLLABORATION_STATES = ['pending', 'accepted', 'rejected', 'cancelled', 'ended'] as const
/** One of COLLABORATION_STATES. */
export type CollaborationStatus = (typeof COLLABORATION_STATES)[number]
/**
 * What changes a collaboration. `resend` sends the invitation again; `remove` is by the account, `leave` by the user.
 */
export type CollaborationTrigger = 'accept' | 'reject' | 'resend' | 'remove' | 'leave'

const TRANSITIONS: Readonly<
  Record<CollaborationStatus, Readonly<Partial<Record<CollaborationTrigger, CollaborationStatus>>>>
> = {
  pending: { accept: 'accepted', reject: 'rejected', resend: 'pending', remove: 'cancelled' },
  accepted: { remove: 'ended', leave: 'ended' },
  rejected: {},
  cancelled: {},
  ended: {},
}

/** The state after a trigger; undefined: the transition is not possible. */
export function nextStatus(
  status: CollaborationStatus,
  trigger: CollaborationTrigger,
): CollaborationStatus | undefined {
  return TRANSITIONS[status][trigger]
}

/**
 * The most invitations of an account that are pending or younger than an hour. Cancelled ones count too, so cancelling
 * does not allow more mail.
 */
export const INVITATION_LIMIT = 100
/** The most resends of one invitation in an hour. */
export const RESEND_LIMIT = 5
const HOUR_MS = 3_600_000

/** The times of the resends in the last hour, with `now` added. Undefined: the limit is reached. */
export function addResend(resends: readonly Date[], now: Date): Date[] | undefined {
  const recent = resends.filter((one) => one.getTime() > now.getTime() - HOUR_MS)
  return recent.length >= RESEND_LIMIT ? undefined : [...recent, now]
}

/** The seconds after which `addResend` allows another resend. */
export function resendWaitSeconds(resends: readonly Date[], now: Date): number {
  const oldest = resends.at(-RESEND_LIMIT)?.getTime() ?? -Infinity
  return Math.max(0, Math.ceil((oldest + HOUR_MS - now.getTime()) / 1000))
}

/** Every role, with the label that people see. */
export const ROLES = { admin: 'Collaborator' } as const
/** A key of ROLES. */
export type Role = keyof typeof ROLES
