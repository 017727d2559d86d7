/** The states and roles of collaborations. */
import { ROWS } from './resources.ts'

export const COLLABORATION_STATES = ROWS.collaboration.states
export type CollaborationStatus = (typeof COLLABORATION_STATES)[number]

/** Every role, with the label that people see. */
export const ROLES = { admin: 'Collaborator' } as const
export type Role = keyof typeof ROLES
