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

/** Who has which address. Answers from memory, at once. */
export interface Directory {
  find(network: string, address: string): Guest | 'unknown' | 'contested'
}

/** The address at the other end of a connection in canonical form; empty when the connection is gone. */
export function peerAddress({ remoteAddress = '' }: Pick<Socket, 'remoteAddress'>): string {
  if (!remoteAddress.includes(':')) return remoteAddress
  if (remoteAddress.startsWith('::ffff:') && remoteAddress.includes('.')) return remoteAddress.slice('::ffff:'.length)
  return canonicalAddress(remoteAddress.split('%', 1)[0] ?? '') ?? ''
}

/** The guest at the other end of a connection, or why it is not known. */
export function identify(directory: Directory, network: string, address: string): Guest | Refusal {
  const found = directory.find(network, address)
  if (found === 'unknown') return 'unknown-peer'
  return found === 'contested' ? 'contested-address' : found
}
