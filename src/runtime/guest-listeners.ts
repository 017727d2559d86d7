/**
 * The text of IMDS_LISTEN: where guests reach the daemon. The daemon listens there, and the firewall agent admits rules
 * for these addresses only.
 */
import { DEFAULT_NETWORK, isName } from '../metadata/identifiers.ts'
import { formatHostPort, parseAddressPort, type HostPort } from './host-port.ts'
import { list } from './variables.ts'

/** The default of IMDS_LISTEN. */
export const DEFAULT_LISTEN = '169.254.169.254:80'

export type GuestListenAddress = HostPort & { readonly network: string }

/** Parses a part, `ADDRESS:PORT` or `NETWORK=ADDRESS:PORT`. */
export function parseGuestListener(part: string): GuestListenAddress | undefined {
  const [network, address] = part.includes('=')
    ? [part.slice(0, part.indexOf('=')), part.slice(part.indexOf('=') + 1)]
    : [DEFAULT_NETWORK, part]
  const parsed = parseAddressPort(address)
  return parsed === undefined || !isName(network) ? undefined : { network, ...parsed }
}

/**
 * Parses the whole text, parts with commas between them. Leaves out parts that are not valid: the daemon does not start
 * with them.
 */
export function parseGuestListeners(text: string): GuestListenAddress[] {
  return list(text)
    .map(parseGuestListener)
    .filter((address) => address !== undefined)
}

/**
 * How the places that IMDS_LISTEN names (`listed`) and those where guests are served differ. A listed one without a
 * network may be that of any.
 */
export function compareListeners(
  listed: readonly GuestListenAddress[],
  served: readonly GuestListenAddress[],
): { readonly unserved: readonly string[]; readonly unlisted: readonly string[] } {
  const isSame = (listener: GuestListenAddress, { network, host, port }: GuestListenAddress) =>
    listener.host === host &&
    listener.port === port &&
    (listener.network === network || listener.network === DEFAULT_NETWORK)
  return {
    unserved: listed.filter((listener) => !served.some((other) => isSame(listener, other))).map(formatListener),
    unlisted: served.filter((other) => !listed.some((listener) => isSame(listener, other))).map(formatListener),
  }
}

function formatListener(place: GuestListenAddress): string {
  return `${place.network}=${formatHostPort(place)}`
}
