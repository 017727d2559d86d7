/**
 * The text of IMDS_LISTEN: where guests reach the daemon. The daemon listens there, and the firewall agent admits rules
 * for these places only.
 */
import { DEFAULT_NETWORK, isName } from '../metadata/identifiers.ts'
import { parseAddressPort, type HostPort } from './host-port.ts'

/** The default of IMDS_LISTEN. */
export const DEFAULT_LISTEN = '169.254.169.254:80'

/** A listener for the guests of one network. */
export type GuestPlace = HostPort & { readonly network: string }

/** Parses a part, `ADDRESS:PORT` or `NETWORK=ADDRESS:PORT`. */
export function parseGuestListener(part: string): GuestPlace | undefined {
  const [network, address] = part.includes('=')
    ? [part.slice(0, part.indexOf('=')), part.slice(part.indexOf('=') + 1)]
    : [DEFAULT_NETWORK, part]
  const place = parseAddressPort(address)
  return place === undefined || !isName(network) ? undefined : { network, ...place }
}

/**
 * Parses the whole text, parts with commas between them. Leaves out parts that are not valid: the daemon does not start
 * with them.
 */
export function parseGuestListeners(text: string): GuestPlace[] {
  return text
    .split(',')
    .map((part) => parseGuestListener(part.trim()))
    .filter((place) => place !== undefined)
}
