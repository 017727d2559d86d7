/**
 * What clients can ask of a server, in which state, and the state that follows. Pure.
 *
 *   creating --> active --stop, shutdown--> inactive --start--> active
 */
/** The states of a server. */
export type ServerStatus = 'creating' | 'active' | 'inactive' | 'deleting' | 'deleted' | 'failed' | 'unavailable'
/**
 * The actions of the compute system on a server: those that clients ask for, and those that follow from other requests.
 */
export type ActionKind =
  | 'create'
  | 'start'
  | 'stop'
  | 'shutdown'
  | 'reboot'
  | 'reset'
  | 'snapshot'
  | 'activate_console'
  | 'delete_image'
  | 'delete'
/** How an action ended. */
export type Outcome = 'succeeded' | 'failed'

/** The actions of the API on a server. */
export const SERVER_ACTIONS = [
  'start',
  'stop',
  'shutdown',
  'reboot',
  'reset',
  'snapshot',
  'activate_console',
] as const satisfies readonly ActionKind[]
/** One of SERVER_ACTIONS. */
export type ServerAction = (typeof SERVER_ACTIONS)[number]

/** What an action does, in which states it is possible, and the state that follows (undefined: the state stays). */
export interface ActionRule {
  readonly does: string
  readonly from: readonly ServerStatus[]
  readonly to: ServerStatus | undefined
}

/** The rule of each action. */
export const ACTION_RULES: Readonly<Record<ServerAction, ActionRule>> = {
  start: { does: 'Start a server', from: ['inactive'], to: 'active' },
  stop: { does: 'Stop a server: its power goes off', from: ['active'], to: 'inactive' },
  shutdown: { does: 'Shut a server down: its power button is pressed', from: ['active'], to: 'inactive' },
  reboot: { does: 'Reboot a server: Ctrl-Alt-Delete is pressed', from: ['active'], to: undefined },
  reset: { does: 'Reset a server: its power goes off and on', from: ['active'], to: undefined },
  snapshot: { does: 'Make an image of the disk of a server', from: ['active', 'inactive'], to: undefined },
  activate_console: { does: 'Open the graphical console of a server for 15 minutes', from: ['active'], to: undefined },
}

/** The most actions of one server without an outcome. */
export const OPEN_ACTIONS_MAX = 16
/** The actions that a deletion of the server makes pointless. A snapshot outlives its server. */
export const SUPERSEDED_BY_DELETE = [
  'start',
  'stop',
  'shutdown',
  'reboot',
  'reset',
  'activate_console',
] as const satisfies readonly ServerAction[]

/** True if an action is possible in a state. */
export function isPossible(action: ServerAction, status: ServerStatus): boolean {
  return ACTION_RULES[action].from.includes(status)
}

/**
 * The state of a server after actions that succeed. Actions that clients cannot ask for, and actions that are not
 * possible, leave it as it is.
 */
export function statusAfter(status: ServerStatus, actions: readonly ActionKind[]): ServerStatus {
  return actions.reduce(
    (now, kind) => (isServerAction(kind) && isPossible(kind, now) ? (ACTION_RULES[kind].to ?? now) : now),
    status,
  )
}

function isServerAction(kind: ActionKind): kind is ServerAction {
  return (SERVER_ACTIONS as readonly string[]).includes(kind)
}
