/**
 * How is an address written?
 *
 * One spelling per address, everywhere: in records, in the indexes of the store, in the view and for the peer of a connection, so
 * that addresses compare as text. What an address means is left to the ip-address library.
 *
 * A range is an address, or an IPv6 prefix that stands for every address in it. Prefix lengths are multiples of 4, so a range is the
 * hexadecimal digits that its addresses begin with: it contains another exactly when its digits begin the other's, and sorts right
 * before what it contains. Redis, which knows no addresses, can look for that.
 */
import { Address4, Address6 } from 'ip-address'
import { isIPv4 } from 'node:net'

/**
 * An address in canonical form: IPv4 in dotted decimals without leading zeros, IPv6 as RFC 5952 writes it, and an IPv4-mapped IPv6
 * address as the IPv4 address that it is. Undefined for anything else, and for an address with a zone or a prefix length.
 */
export function canonicalAddress(address: string): string | undefined {
  if (isIPv4(address)) return address // Node takes no other spelling
  if (!address.includes(':') || address.includes('/') || address.includes('%')) return undefined
  try {
    const parsed = new Address6(address)
    return parsed.isMapped4() ? parsed.to4().correctForm() : parsed.correctForm()
  } catch { // the library says so of what is no address
    return undefined
  }
}

/** True for a canonical IPv4 address. */
export function isIpv4(address: string): boolean {
  return !address.includes(':') && canonicalAddress(address) === address
}

/** True for a canonical IPv6 address that is not an IPv4 address in disguise. */
export function isIpv6(address: string): boolean {
  return address.includes(':') && canonicalAddress(address) === address
}

/** True for an address that packets to a listener on it carry as their destination: canonical, and neither 0.0.0.0 nor ::. */
export function isOneAddress(address: string): boolean {
  return canonicalAddress(address) === address && address !== '0.0.0.0' && address !== '::'
}

/** Address and prefix length of `10.0.0.2/30`; no length for `10.0.0.2`. Splits only: checks neither. */
export function splitPrefix(address: string): { address: string, prefixLength?: number } {
  const slash = address.indexOf('/')
  if (slash === -1) return { address }
  return { address: address.slice(0, slash), prefixLength: Number(address.slice(slash + 1)) }
}

/** The subnet of an interface's address with its prefix length: `10.0.0.2/30` is in `10.0.0.0/30`. */
export function subnetOf(address: string): string {
  const parsed = address.includes(':') ? new Address6(address) : new Address4(address)
  return `${parsed.startAddress().correctForm()}/${String(parsed.subnetMask)}`
}

const PREFIX_LENGTHS = { least: 48, most: 124 }
/** Global unicast and unique local: multicast is nobody's source, and every guest of a network has addresses in the link-local fe80::/64. */
const OWNABLE = /^(?:[23]|f[cd])/

/**
 * True for a canonical IPv6 network that an interface may own: `2a02:1348:178:1::/64`. Shorter than /48, which is what a site gets
 * (RFC 6177), is a slip that would take the addresses of many.
 */
export function isIpv6Prefix(range: string): boolean {
  const { address, prefixLength = 0 } = splitPrefix(range)
  const digits = ipv6Digits(address)
  return range === `${address}/${String(prefixLength)}` && isIpv6(address) && OWNABLE.test(digits)
    && prefixLength % 4 === 0 && prefixLength >= PREFIX_LENGTHS.least && prefixLength <= PREFIX_LENGTHS.most
    && /^0*$/.test(digits.slice(prefixLength / 4))
}

/**
 * The hexadecimal digits that every address of an IPv6 range begins with: 32 for an address, length / 4 for a prefix. Takes any
 * spelling but one with dots; for what is no address, whatever its digits, it gives some text.
 */
export function ipv6Digits(range: string): string {
  const { address, prefixLength = 128 } = splitPrefix(range)
  const [head = '', tail = ''] = address.split('::').map(padded)
  return (head + '0'.repeat(Math.max(0, 32 - head.length - tail.length)) + tail).slice(0, prefixLength / 4)
}

function padded(groups: string): string {
  return groups.split(':').map((group) => group.padStart(4, '0')).join('').toLowerCase()
}

/** True when there is an address in both of two canonical ranges. */
export function overlap(a: string, b: string): boolean {
  if (!a.includes(':') || !b.includes(':')) return a === b
  const [digits, others] = [ipv6Digits(a), ipv6Digits(b)]
  return digits.startsWith(others) || others.startsWith(digits)
}
