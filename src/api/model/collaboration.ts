/**
 * The states of a collaboration (the interface, Collaboration transitions):
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
export type CollaborationStatus = typeof COLLABORATION_STATES[number]
/** What changes a collaboration. `resend` sends the invitation again; `remove` is by the account, `leave` by the user. */
export type CollaborationTrigger = 'accept' | 'reject' | 'resend' | 'remove' | 'leave'

const TRANSITIONS: Readonly<Record<CollaborationStatus, Readonly<Partial<Record<CollaborationTrigger, CollaborationStatus>>>>> = {
  pending: { accept: 'accepted', reject: 'rejected', resend: 'pending', remove: 'cancelled' },
  accepted: { remove: 'ended', leave: 'ended' },
  rejected: {},
  cancelled: {},
  ended: {},
}

/** The state after a trigger; undefined: the transition is not possible. */
export function nextStatus(status: CollaborationStatus, trigger: CollaborationTrigger): CollaborationStatus | undefined {
  return TRANSITIONS[status][trigger]
}

/** Every role, with the label that people see. */
export const ROLES = { admin: 'Collaborator' } as const
/** A key of ROLES. */
export type Role = keyof typeof ROLES
