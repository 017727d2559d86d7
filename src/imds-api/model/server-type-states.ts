/** The states of a server type (docs/api.md#server-types-and-zones), which the region file sets. */

/**
 * The default type of a new server is an available one. A request may name an experimental one, but not a deprecated
 * one.
 */
export const SERVER_TYPE_STATES = ['experimental', 'available', 'deprecated'] as const
/** One of SERVER_TYPE_STATES. */
export type ServerTypeStatus = (typeof SERVER_TYPE_STATES)[number]
