/** The values of the states and actions of servers. */
import { ROWS } from './resources.ts'

export type ServerStatus = (typeof ROWS.server.states)[number]

export const SERVER_ACTIONS = ['start', 'stop', 'shutdown', 'reboot', 'reset', 'snapshot', 'activate_console'] as const
export type ServerAction = (typeof SERVER_ACTIONS)[number]
/**
 * The actions of the compute system on a server: those that clients ask for, and those that follow from other requests.
 */
export type ActionKind = ServerAction | 'create' | 'delete_image' | 'delete'
export type ActionOutcome = 'succeeded' | 'failed'
