/**
 * How is an address written?
 *
 * One spelling per address, everywhere: in records, in the indexes of the store, in the view and for the peer of a connection, so
 * that addresses compare as text. What an address means is left to the ip-address library.
 */
import { Address4, Address6 } from 'ip-address'

/**
 * An address in canonical form: IPv4 in dotted decimals without leading zeros, IPv6 as RFC 5952 writes it, and an IPv4-mapped IPv6
 * address as the IPv4 address that it is. Undefined for anything else, and for an address with a zone or a prefix length.
 */
export function canonicalAddress(address: string): string | undefined {
  if (address.includes('/') || address.includes('%')) return undefined
  if (!address.includes(':')) return Address4.isValid(address) ? new Address4(address).correctForm() : undefined
  if (!Address6.isValid(address)) return undefined
  const parsed = new Address6(address)
  return parsed.isMapped4() ? parsed.to4().correctForm() : parsed.correctForm()
}

/** True for a canonical IPv4 address. */
export function isIpv4(address: string): boolean {
  return !address.includes(':') && canonicalAddress(address) === address
}

/** True for a canonical IPv6 address that is not an IPv4 address in disguise. */
export function isIpv6(address: string): boolean {
  return address.includes(':') && canonicalAddress(address) === address
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
