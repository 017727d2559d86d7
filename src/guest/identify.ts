/**
 * Who is asking?
 *
 * The socket says who, never a header (invariant 1): the network of the listener that accepted the connection, and the address at
 * its other end. What that pair means is the directory's business; this side declares the little that it needs of one.
 */
import type { Socket } from 'node:net'
import { canonicalAddress } from '../metadata/address.ts'
import type { Content } from '../metadata/tree.ts'
import type { Refusal } from './answers.ts'

/** An instance as the guest side needs it. */
export interface Guest {
  readonly instance: { readonly id: string }
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

/** The address at the other end of a connection in canonical form; empty when the connection is gone. */
export function peerAddress({ remoteAddress = '' }: Pick<Socket, 'remoteAddress'>): string {
  if (!remoteAddress.includes(':')) return remoteAddress
  if (remoteAddress.startsWith('::ffff:') && remoteAddress.includes('.')) return remoteAddress.slice('::ffff:'.length)
  return canonicalAddress(remoteAddress.split('%', 1)[0] ?? '') ?? ''
}

/** Why nobody is answered at an address; null where a guest was found. */
export function refusalOf(found: Found): Refusal | null {
  if (found === 'unknown') return 'unknown-peer'
  return found === 'contested' ? 'contested-address' : null
}
