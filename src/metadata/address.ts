/**
 * Addresses and their canonical form. Records, the store's indexes, the view and the peers of connections all use it,
 * so addresses can be compared as text. The ip-address library parses them.
 *
 * A range is an address, or an IPv6 prefix with all of its addresses. Prefix lengths are multiples of 4, so a range is
 * identified by the leading hexadecimal digits of its addresses: it contains another range if its digits are the
 * beginning of the other's, and it sorts right before the ranges that it contains. Redis, which has no type for
 * addresses, can search for that.
 */
/** Tests whether an address belongs to a list of networks. */
import { Address4, Address6 } from 'ip-address'
import { BlockList, isIP, isIPv4, isIPv6 } from 'node:net'

/**
 * The canonical form of an address: IPv4 in dotted decimals without leading zeros, IPv6 according to RFC 5952, and an
 * IPv4-mapped IPv6 address as an IPv4 address. Undefined for anything else, and for an address with a zone or a prefix
 * length.
 */
export function canonicalAddress(address: string): string | undefined {
  if (isIPv4(address)) return address // accepts no other form
  if (!address.includes(':') || address.includes('/') || address.includes('%')) return undefined
  try {
    const parsed = new Address6(address)
    return parsed.isMapped4() ? parsed.to4().correctForm() : parsed.correctForm()
  } catch {
    // not an address
    return undefined
  }
}

export function isIpv4(address: string): boolean {
  return !address.includes(':') && canonicalAddress(address) === address
}

/** True for a canonical IPv6 address; an IPv4-mapped one is not canonical. */
export function isIpv6(address: string): boolean {
  return address.includes(':') && canonicalAddress(address) === address
}

/** True for a canonical address that can be the destination of packets: neither 0.0.0.0 nor ::. */
export function isOneAddress(address: string): boolean {
  return canonicalAddress(address) === address && address !== '0.0.0.0' && address !== '::'
}

/**
 * 0.0.0.0/8, 169.254.0.0/16, 224.0.0.0/4, 255.255.255.255, ::, fe80::/10 and ff00::/8, in canonical form. publish.lua
 * has the same list.
 */
const UNUSABLE = /^(?:0|169\.254|22[4-9]|23\d)\.|^255\.255\.255\.255$|^::$|^(?:fe[89ab]|ff[0-9a-f])[0-9a-f]:/
/** The rule of `isUnusableAddress` for people, as the end of a sentence about an address. */
export const UNUSABLE_ADDRESS = 'is unspecified, link-local, multicast or broadcast, which cannot identify a guest'

/**
 * True for a canonical address that cannot identify a guest (contract E1): guests on several links may have the same
 * link-local address, and the others are never the source of a connection. Loopback addresses are those of a demo's
 * guests.
 */
export function isUnusableAddress(address: string): boolean {
  return UNUSABLE.test(address)
}

/** Splits `10.0.0.2/30` into address and prefix length; `10.0.0.2` has no length. Checks neither. */
export function splitPrefix(address: string): { address: string; prefixLength?: number } {
  const slash = address.indexOf('/')
  if (slash === -1) return { address }
  return { address: address.slice(0, slash), prefixLength: Number(address.slice(slash + 1)) }
}

/** The subnet of an address with a prefix length: that of `10.0.0.2/30` is `10.0.0.0/30`. */
export function subnetOf(address: string): string {
  const parsed = address.includes(':') ? new Address6(address) : new Address4(address)
  return `${parsed.startAddress().correctForm()}/${parsed.subnetMask}`
}

/** The netmask of an address with a prefix length: that of `10.0.0.2/30` is `255.255.255.252`. */
export function netmaskOf(address: string): string {
  const parsed = address.includes(':') ? new Address6(address) : new Address4(address)
  return parsed.subnetMaskAddress().correctForm()
}

const PREFIX_LENGTHS = { least: 48, most: 124 }
/**
 * Global unicast and unique local. Multicast is never a source address, and all guests of a network share the
 * link-local fe80::/64.
 */
const OWNABLE = /^(?:[23]|f[cd])/

/**
 * True for a canonical IPv6 network that an interface may own, such as `2a02:1348:178:1::/64`. A site gets a /48 (RFC
 * 6177): a shorter prefix is a mistake that would take the addresses of others.
 */
export function isIpv6Prefix(range: string): boolean {
  const { address, prefixLength = 0 } = splitPrefix(range)
  const digits = ipv6Digits(address)
  return (
    range === `${address}/${prefixLength}` &&
    isIpv6(address) &&
    OWNABLE.test(digits) &&
    prefixLength % 4 === 0 &&
    prefixLength >= PREFIX_LENGTHS.least &&
    prefixLength <= PREFIX_LENGTHS.most &&
    /^0*$/.test(digits.slice(prefixLength / 4))
  )
}

/**
 * The hexadecimal digits that all addresses of an IPv6 range begin with: 32 for an address, length / 4 for a prefix.
 * Accepts every form without dots. The result for text that is not an address is unspecified; it does not throw.
 */
export function ipv6Digits(range: string): string {
  const { address, prefixLength = 128 } = splitPrefix(range)
  const [head = '', tail = ''] = address.split('::').map(padded)
  return (head + '0'.repeat(Math.max(0, 32 - head.length - tail.length)) + tail).slice(0, prefixLength / 4)
}

/**
 * The part of a canonical address that identifies its user: an IPv4 address, or the first 64 bits of an IPv6 address,
 * as hexadecimal digits. A link-local address may have a zone, which belongs to that part.
 */
export function sourceOf(address: string): string {
  if (!address.includes(':')) return address
  const [plain = '', zone] = address.split('%')
  const digits = ipv6Digits(plain).slice(0, 16)
  return zone === undefined ? digits : `${digits}%${zone}`
}

function padded(groups: string): string {
  return groups
    .split(':')
    .map((group) => group.padStart(4, '0'))
    .join('')
    .toLowerCase()
}

/** True if two canonical ranges have an address in common. */
export function overlap(a: string, b: string): boolean {
  if (!a.includes(':') || !b.includes(':')) return a === b
  const [digits, others] = [ipv6Digits(a), ipv6Digits(b)]
  return digits.startsWith(others) || others.startsWith(digits)
}

/**
 * The owner of an address. `contested`: more than one instance claims it. `unconfirmed`: its owner has gained it, and the
 * rules of the firewall may still give it to another instance.
 */
export type Ownership<T> =
  | { readonly kind: 'owned'; readonly owner: T }
  | { readonly kind: 'unknown' }
  | { readonly kind: 'contested' }
  | { readonly kind: 'unconfirmed' }

/** The ownership of an address that no instance claims. */
export const UNKNOWN = Object.freeze({ kind: 'unknown' })
export const CONTESTED = Object.freeze({ kind: 'contested' })
export const UNCONFIRMED = Object.freeze({ kind: 'unconfirmed' })

/**
 * Builds the test for networks such as `10.1.0.0/16` and `fd00::/8`, and single addresses. An IPv4-mapped IPv6 address
 * belongs to the networks of its IPv4 address. Text that is not an address belongs to none.
 */
export function buildNetworkTest(networks: readonly string[]): (address: string) => boolean {
  const list = new BlockList()
  for (const network of networks) {
    const [address = '', prefix] = network.split('/')
    const family = familyOf(address)
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  return (address) => isIP(address) !== 0 && list.check(address, familyOf(address))
}

/** Whether a text is an address, or a network such as 192.0.2.0/24 or 2001:db8::/32. */
export function isNetwork(text: string): boolean {
  const [address = '', length, ...more] = text.split('/')
  if (isIP(address) === 0 || address.includes('%') || more.length > 0) return false
  if (length === undefined) return true
  const bits = isIPv6(address) ? 128 : 32
  return /^\d{1,3}$/.test(length) && Number(length) <= bits
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIPv6(address) ? 'ipv6' : 'ipv4'
}
