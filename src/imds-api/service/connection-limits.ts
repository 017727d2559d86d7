/** How many connections each listener may have, given the number of file descriptors. */

/**
 * File descriptors for other purposes: connections to the database and the store, listeners, files. An idle imds-api
 * has about 170 open.
 */
const RESERVED_DESCRIPTORS = 192
/**
 * The most connections of a listener for clients, or for hypervisors, if there are descriptors enough; and of that for
 * operators.
 */
const [MAX_CLIENT_CONNECTIONS, MAX_OPERATOR_CONNECTIONS] = [4_096, 64]

/** The listeners cannot use up each other's connections. */
export function shareConnections(descriptors: number): {
  readonly clients: number
  readonly hypervisors: number
  readonly operators: number
} {
  const left = Math.max(descriptors - RESERVED_DESCRIPTORS, descriptors / 4)
  const part = (share: number, most: number) => Math.max(1, Math.min(most, Math.floor(left * share)))
  return {
    clients: part(5 / 8, MAX_CLIENT_CONNECTIONS),
    hypervisors: part(2 / 8, MAX_CLIENT_CONNECTIONS),
    operators: part(1 / 8, MAX_OPERATOR_CONNECTIONS),
  }
}

/**
 * How many of a listener's connections one address may have, given the setting: at most half, so that no address keeps
 * others out.
 */
export function shareOfAddress(setting: number, most: number): number {
  return Math.max(1, Math.min(setting, Math.floor(most / 2)))
}
