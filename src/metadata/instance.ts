/**
 * What is an instance?
 *
 * A record (see record.ts) that was found good, as the rest of the daemon knows it. Apart from the check, which is a large thing to load: a
 * start that finds its own snapshot does without.
 */
import type { Static } from 'typebox'
import { splitPrefix } from './address.ts'
import type { InstanceSchema } from './record.ts'

/** The network of an interface or a listener that names none. */
export const DEFAULT_NETWORK = 'default'

/** The form of every id, as a regular expression: safe in Redis keys, paths, file names and nftables rules. */
export const ID = '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'
/** The same in words. */
export const ID_RULE = 'an id: 1 to 64 letters, digits, ".", "_" or "-", beginning with a letter or digit'

const idForm = new RegExp(ID)

/** The form of a name: of a region, a hypervisor, a network, a handle. */
export const NAME = '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'

const nameForm = new RegExp(NAME)

/** True for text of the form of a name. */
export function isName(text: string): boolean {
  return nameForm.test(text)
}

/** True for text of the form of an id. */
export function isId(text: string): boolean {
  return idForm.test(text)
}

/** A record is at most this long as JSON, in bytes, unknown fields included. */
export const RECORD_MAX_BYTES = 256 * 1024

/** Which schema an instance was found good by: the first digits of its SHA-256. What was kept under another is checked again. */
export const RECORD_FORM = 'e5bba1a23bc0d687'

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
