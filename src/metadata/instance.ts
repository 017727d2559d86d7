/**
 * The type of a valid record. It is not in record.ts, because record.ts takes long to load, and a daemon that starts
 * from its own journal does not need it.
 */
import type { Static } from 'typebox'
import { splitPrefix } from './address.ts'
import type { InstanceSchema } from './schema.ts'

/** The largest size of a record as JSON, in bytes, unknown fields included. */
export const MAX_RECORD_BYTES = 256 * 1024

/**
 * Identifies the schema: the first digits of its SHA-256, without descriptions. An instance in a journal with another
 * value is checked again.
 */
export const RECORD_FORM = 'e09bf31550ae7249'

type Deep<T> = T extends (infer U)[]
  ? readonly Deep<U>[]
  : T extends object
    ? { readonly [K in keyof T]: Deep<T[K]> }
    : T

/** A valid record. Nothing changes it: a change of the record is a new Instance. */
export type Instance = Deep<Static<typeof InstanceSchema>>
export type Interface = Instance['interfaces'][number]

/** An address or an IPv6 prefix on a network. */
export interface NetworkRange {
  readonly network: string
  readonly range: string
}

/** Every address and IPv6 prefix that identifies an instance, with the network of its interface. Cloud IPs do not. */
export function rangesOf(instance: Instance): NetworkRange[] {
  return instance.interfaces.flatMap(({ network, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => {
    const addresses = [...ipv4Addresses, ...ipv6Addresses].map((address) => splitPrefix(address).address)
    return [...addresses, ...ipv6Prefixes].map((range) => ({ network, range }))
  })
}

/**
 * Every SSH key, in the order of the tree. `name`: unique, since cloud-init keeps one key of each name: the id of the
 * user, and for further keys of the user with a number, which no id can have: `usr-x1y2z:2`.
 */
export function namedKeys({
  publicKeys,
}: Pick<Instance, 'publicKeys'>): { readonly name: string; readonly key: string }[] {
  return publicKeys.flatMap(({ user, key, moreKeys }) =>
    [key, ...moreKeys].map((text, i) => ({ name: i === 0 ? user : `${user}:${i + 1}`, key: text })),
  )
}
