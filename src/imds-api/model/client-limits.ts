/**
 * What an API client may do less than its account (extensions, docs/accounts.md#limits-of-an-api-client): only read,
 * only until a time, only from some networks.
 */
import { BlockList, isIP, isIPv6 } from 'node:net'

/** The most networks of a client. */
export const MAX_NETWORKS = 32
/** The longest time that the former secret stays valid beside a new one, in seconds: a week. */
export const MAX_KEEP_OLD_SECONDS = 604_800

/** The limits as the database has them. */
export interface LimitColumns {
  readonly read_only: boolean
  readonly expires_at: Date | null
  readonly allow_access: readonly string[]
}

/** `networks` undefined: from everywhere. `expiresAtMs`: since 1970; Infinity: never. */
export interface ClientLimits {
  readonly readOnly: boolean
  readonly networks: BlockList | undefined
  readonly expiresAtMs: number
}

export function limitsOf({ read_only, expires_at, allow_access }: LimitColumns): ClientLimits {
  return {
    readOnly: read_only,
    networks: allow_access.length === 0 ? undefined : listOf(allow_access),
    expiresAtMs: expires_at?.getTime() ?? Infinity,
  }
}

/** Whether a client may be used from an address; empty: that of a unix socket, which is in no network. */
export function allowsAddress({ networks }: ClientLimits, address: string): boolean {
  return networks === undefined || (isIP(address) !== 0 && networks.check(address, familyOf(address)))
}

/** Whether a text is an address, or a network such as 192.0.2.0/24 or 2001:db8::/32. */
export function isNetwork(text: string): boolean {
  const [address = '', length, ...more] = text.split('/')
  if (isIP(address) === 0 || address.includes('%') || more.length > 0) return false
  if (length === undefined) return true
  const bits = isIPv6(address) ? 128 : 32
  return /^\d{1,3}$/.test(length) && Number(length) <= bits
}

function listOf(networks: readonly string[]): BlockList {
  const list = new BlockList()
  for (const network of networks) {
    const [address = '', length] = network.split('/')
    if (length === undefined) list.addAddress(address, familyOf(address))
    else list.addSubnet(address, Number(length), familyOf(address))
  }
  return list
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIPv6(address) ? 'ipv6' : 'ipv4'
}
