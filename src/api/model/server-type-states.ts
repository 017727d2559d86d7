/** The states of a server type (docs/api.md#server-types-and-zones), which the region file sets. */

/** Only available ones are the default of a new server, and deprecated ones make no new server. */
export const SERVER_TYPE_STATES = ['experimental', 'available', 'deprecated'] as const
/** One of SERVER_TYPE_STATES. */
export type ServerTypeStatus = typeof SERVER_TYPE_STATES[number]
