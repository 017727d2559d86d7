/**
 * The type of a valid record. It is not in record.ts, because record.ts takes long to load, and a daemon that starts
 * from its own snapshot does not need it.
 */
import type { Static } from 'typebox'
import { isUnusableAddress, splitPrefix } from './address.ts'
import type { InstanceSchema } from './schema.ts'

/** The largest size of a record as JSON, in bytes, unknown fields included. */
export const MAX_RECORD_BYTES = 256 * 1024

/**
 * Identifies the schema: the first digits of its SHA-256. An instance in a snapshot with another value is checked
 * again.
 */
export const RECORD_FORM = '3fb9030261f6cd41'

type Deep<T> = T extends (infer U)[]
  ? readonly Deep<U>[]
  : T extends object
    ? { readonly [K in keyof T]: Deep<T[K]> }
    : T

/** A valid record, deeply frozen. */
export type Instance = Deep<Static<typeof InstanceSchema>>
export type Interface = Instance['interfaces'][number]

/** An address or an IPv6 prefix on a network. */
export interface NetworkRange {
  readonly network: string
  readonly range: string
}

/** Every address and IPv6 prefix that identifies an instance, with the network of its interface. Cloud IPs do not. */
export function rangesOf(instance: Instance): NetworkRange[] {
  return allRangesOf(instance).filter(({ range }) => !isUnusableAddress(range))
}

/** The addresses that cannot identify a guest (contract E1). Only records that other programs wrote have any. */
export function unusableAddresses(instance: Instance): NetworkRange[] {
  return allRangesOf(instance).filter(({ range }) => isUnusableAddress(range))
}

function allRangesOf(instance: Instance): NetworkRange[] {
  return instance.interfaces.flatMap(({ network, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => {
    const addresses = [...ipv4Addresses, ...ipv6Addresses].map((address) => splitPrefix(address).address)
    return [...addresses, ...ipv6Prefixes].map((range) => ({ network, range }))
  })
}

export function frozen<T>(value: T): Deep<T> {
  if (!Object.isFrozen(value)) {
    // primitive values count as frozen
    Object.freeze(value)
    for (const part of Object.values(value as object)) frozen(part)
  }
  return value as Deep<T>
}
