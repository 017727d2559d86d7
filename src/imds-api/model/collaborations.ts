/** The states and roles of collaborations. */
export const COLLABORATION_STATES = ['pending', 'accepted', 'rejected', 'cancelled', 'ended'] as const
export type CollaborationStatus = (typeof COLLABORATION_STATES)[number]

/** Every role, with the label that people see. */
export const ROLES = { admin: 'Collaborator' } as const
export type Role = keyof typeof ROLES
