/**
 * Identifies the guest of a connection, by the socket and never by a header (invariant 1): the network of the listener
 * that accepted the connection, and the address of the peer. GuestFinder maps that pair to a guest; the interfaces here
 * are all that the guest side needs of it.
 */
import type { Socket } from 'node:net'
import { UNKNOWN, type Ownership } from '../../metadata/address.ts'
import type { Content } from '../../metadata/content.ts'
import type { Instance } from '../../metadata/instance.ts'
import { isLoopback } from '../../runtime/host-port.ts'
import type { RefusalReason } from './refusals.ts'

/** An instance, with the fields that the guest side reads. */
export interface Guest {
  readonly instance: Pick<Instance, 'id' | 'account' | 'image' | 'zone'> & {
    readonly options: Pick<
      Instance['options'],
      'httpEndpoint' | 'httpProtocolIpv6' | 'httpTokens' | 'openstack' | 'reports'
    >
  }
  /** Identifies an uninterrupted period in the view: the same object while this hypervisor serves the instance. */
  readonly stay: object
  /** The number of paths in its tree. */
  readonly paths: number
  /** The content of a path at a version's position, or undefined. */
  resolve(version: number, path: string): Content | undefined
  /** A directory with everything below it as JSON; undefined if the path is no directory. */
  resolveSubtree(version: number, path: string): Content | undefined
  /** Makes the content below `dynamic/`, which cannot be read before. Undefined: it is made, or there is none. */
  prepareIdentity(): Promise<void> | undefined
  /** Whether `resolve` has content that is not only in its grace period. */
  has(version: number, path: string): boolean
}

export type FoundGuest = Ownership<Guest>

/** Maps addresses to guests. */
export interface GuestFinder {
  /** Reads memory only. */
  find(network: string, address: string): FoundGuest
  /**
   * Looks an unknown peer up in the store, so that `find` knows it, within a second; undefined if the store may not be
   * asked now. Never rejects.
   */
  lookUp(network: string, address: string): Promise<unknown> | undefined
  /** Adds a function that is called after an instance has changed, or an address that it claims has another owner. */
  onChange(changed: (id: string) => void): void
}

/**
 * Whether a listener at `host` identifies a peer by its address: loopback addresses identify no guest (contract E1),
 * unless the listener itself is on one, as in a demo. Otherwise any program on the hypervisor could choose the address of
 * an instance. `host` undefined: it does not listen.
 */
export function identifies(host: string | undefined, address: string): boolean {
  return !isLoopback(address) || isLoopback(host ?? '')
}

type Lookup = Pick<GuestFinder, 'find' | 'lookUp'>

/** What a listener at `host` finds: no guest of an address that it does not identify. */
export function finderAt(host: string | undefined, finder: Lookup): Lookup {
  return {
    find: (network, address) => (identifies(host, address) ? finder.find(network, address) : UNKNOWN),
    lookUp: (network, address) => (identifies(host, address) ? finder.lookUp(network, address) : undefined),
  }
}

/**
 * The address of a connection's peer: without a zone, and as an IPv4 address if it is IPv4-mapped. Empty if the
 * connection is gone. The system formats addresses in canonical form, so nothing else has to be normalised.
 */
export function peerAddress({ remoteAddress = '' }: Pick<Socket, 'remoteAddress'>): string {
  if (!remoteAddress.includes(':')) return remoteAddress
  if (remoteAddress.startsWith('::ffff:') && remoteAddress.includes('.')) return remoteAddress.slice('::ffff:'.length)
  const zone = remoteAddress.indexOf('%')
  return zone === -1 ? remoteAddress : remoteAddress.slice(0, zone)
}

/**
 * Why every request from an address is refused; undefined if it belongs to a guest whose requests may be served. A peer
 * with an IPv6 address has connected over IPv6.
 */
export function refusalOf(found: FoundGuest, address: string): RefusalReason | undefined {
  if (found.kind === 'unknown') return 'unknown-peer'
  if (found.kind === 'contested') return 'contested-address'
  if (found.kind === 'unconfirmed') return 'unconfirmed-address'
  const { httpEndpoint, httpProtocolIpv6 } = found.owner.instance.options
  if (httpEndpoint === 'disabled') return 'endpoint-disabled'
  return httpProtocolIpv6 === 'disabled' && address.includes(':') ? 'ipv6-disabled' : undefined
}

export function guestOf(found: FoundGuest): Guest | undefined {
  return found.kind === 'owned' ? found.owner : undefined
}

/** The id of the instance that was found, for logs. */
export function idOf(found: FoundGuest): string | undefined {
  return guestOf(found)?.instance.id
}
