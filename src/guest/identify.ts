/**
 * Who is asking?
 *
 * The socket says who, never a header (invariant 1): the network of the listener that accepted the connection, and the address at
 * its other end. What that pair means is the directory's business; this side declares the little that it needs of one.
 */
import type { Socket } from 'node:net'
import type { Content } from '../metadata/tree.ts'
import type { Refusal } from './respond.ts'

type Switch = 'enabled' | 'disabled'

/** An instance as the guest side needs it. */
export interface Guest {
  readonly instance: {
    readonly id: string
    readonly options: { readonly httpEndpoint: Switch, readonly httpProtocolIpv6: Switch, readonly httpTokens: 'optional' | 'required' }
  }
  /** How many paths its tree has. */
  readonly paths: number
  /** The content of a path below a version, or undefined where there is nothing. */
  resolve(version: number, path: string): Content | undefined
}

/** What an address is: a guest, nobody that is known, or claimed by two. */
export type Found = Guest | 'unknown' | 'contested'

/** Who has which address. */
export interface Directory {
  /** From memory, at once. */
  find(network: string, address: string): Found
  /** Asks whoever may know more about an unknown address, within a second; null when nobody may be asked now. Never rejects. */
  ask(network: string, address: string): Promise<Found> | null
}

/**
 * The address at the other end of a connection, without a zone, an IPv4-mapped one as the IPv4 address that it is; empty when the
 * connection is gone. The system prints addresses in canonical form: nothing is left to do on every request.
 */
export function peerAddress({ remoteAddress = '' }: Pick<Socket, 'remoteAddress'>): string {
  if (!remoteAddress.includes(':')) return remoteAddress
  if (remoteAddress.startsWith('::ffff:') && remoteAddress.includes('.')) return remoteAddress.slice('::ffff:'.length)
  const zone = remoteAddress.indexOf('%')
  return zone === -1 ? remoteAddress : remoteAddress.slice(0, zone)
}

/**
 * Why nothing is answered at an address, whatever is asked; null where a guest was found that may ask. Both ends of a connection are of
 * one family, so the address tells that it was made to a listener's IPv6 address.
 */
export function refusalOf(found: Found, address: string): Refusal | null {
  if (found === 'unknown') return 'unknown-peer'
  if (found === 'contested') return 'contested-address'
  const { httpEndpoint, httpProtocolIpv6 } = found.instance.options
  if (httpEndpoint === 'disabled') return 'endpoint-disabled'
  return httpProtocolIpv6 === 'disabled' && address.includes(':') ? 'ipv6-disabled' : null
}
