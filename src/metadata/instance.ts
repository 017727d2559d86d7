/**
 * A valid record (see record.ts), as the rest of the program uses it. Kept apart from the check, which takes long to load: a daemon that
 * starts from its own snapshot does not load it.
 */
import type { Static } from 'typebox'
import { splitPrefix } from './address.ts'
import type { InstanceSchema } from './schema.ts'

/** A record is at most this long as JSON, in bytes, unknown fields included. */
export const RECORD_MAX_BYTES = 256 * 1024

/** Which schema an instance was found good by: the first digits of its SHA-256. What was kept under another is checked again. */
export const RECORD_FORM = '0f22561873889824'

type Deep<T> = T extends (infer U)[] ? readonly Deep<U>[] : T extends object ? { readonly [K in keyof T]: Deep<T[K]> } : T

/** A valid record, frozen to the bottom. */
export type Instance = Deep<Static<typeof InstanceSchema>>
/** A network interface of an instance. */
export type Interface = Instance['interfaces'][number]

/** Every address and IPv6 prefix by which an instance may be known, on the network of its interface. Cloud IPs are not among them. */
export function rangesOf(instance: Instance): { network: string, range: string }[] {
  return instance.interfaces.flatMap(({ network, ipv4Addresses, ipv6Addresses, ipv6Prefixes }) => {
    const addresses = [...ipv4Addresses, ...ipv6Addresses].map((address) => splitPrefix(address).address)
    return [...addresses, ...ipv6Prefixes].map((range) => ({ network, range }))
  })
}

/** Freezes a value to the bottom. */
export function frozen<T>(value: T): Deep<T> {
  if (!Object.isFrozen(value)) { // all that is no object is
    Object.freeze(value)
    for (const part of Object.values(value as object)) frozen(part)
  }
  return value as Deep<T>
}
