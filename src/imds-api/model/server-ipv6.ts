/**
 * The IPv6 addresses of servers. The region file gives a range of private IPv4 addresses an IPv6 network:
 *
 *   a /64    its servers share it
 *   larger   each server owns a /64 of it, numbered by the last bits of its IPv4 address
 *
 * The second half of an address is made of the MAC address, as SLAAC does (RFC 4291, appendix A). So a guest that
 * follows router advertisements has its address without further configuration, and as the MAC address it is unique and
 * not used again soon.
 */
import { Address4, Address6 } from 'ip-address'
import { ipv6Digits, isIpv6Prefix, splitPrefix } from '../../metadata/address.ts'
import { overlap, parseRange } from './pools.ts'

/** The length of the networks that SLAAC works in. */
const SUBNET = 64

/** A private range with its IPv6 network, as the region file has them. */
export interface RangeWithIpv6 {
  readonly range: string
  readonly network: string
}

/** The IPv6 address of a server, and the /64 that it owns (undefined: it shares one). */
export interface ServerIpv6 {
  readonly address: string
  readonly prefix: string | undefined
}

/** The IPv6 address of a server whose private address is in a range with this network. */
export function ipv6OfServer(network: string, macAddress: string, ipv4Address: string): ServerIpv6 {
  const { address: first, prefixLength: length = SUBNET } = splitPrefix(network)
  const number = new Address4(ipv4Address).bigInt() % subnetsOf(length)
  const subnet = BigInt(`0x${ipv6Digits(first)}`) + (number << BigInt(SUBNET))
  return {
    address: format(subnet + interfaceIdOf(macAddress)),
    prefix: length < SUBNET ? `${format(subnet)}/${SUBNET}` : undefined,
  }
}

/** The faults of the IPv6 networks of a region. `others`: its further ranges of IPv6 addresses. */
export function ipv6Faults(given: readonly RangeWithIpv6[], others: readonly string[]): string[] {
  const networks = [...new Set(given.map(({ network }) => network))]
  const faults = networks.flatMap((network) => formFault(network) ?? [])
  if (faults.length > 0) return faults
  const bounds = [
    ...networks.map((text) => ({ text, ...parseNetwork(text)! })),
    ...others.flatMap((text) => {
      const parsed = parseRange('public_ipv6', text)
      return parsed.ok ? [{ text, ...parsed.value }] : []
    }),
  ]
  return [
    ...networks.flatMap((network) => sizeFault(network, given) ?? []),
    ...networks.flatMap((network, i) =>
      bounds
        .slice(i + 1)
        .filter((other) => overlap(bounds[i]!, other))
        .map(({ text }) => `${network} and ${text} overlap`),
    ),
  ]
}

function formFault(text: string): string | undefined {
  const network = parseNetwork(text)
  if (network === undefined) return `"${text}" is not an IPv6 network such as 2001:db8:100::/48`
  const { first, length } = network
  const canonical = `${format(first)}/${length}`
  if (canonical !== text) return `${text} is not in its shortest form: write ${canonical}`
  if (length > SUBNET) return `${text} is too small: give a /${SUBNET} or a larger network`
  return isIpv6Prefix(`${format(first)}/${SUBNET}`)
    ? undefined
    : `${text} is no network of global or unique local addresses: give one of 2000::/3 or fc00::/7`
}

/** The fault of a network in which two of its servers could have the same /64. */
function sizeFault(network: string, given: readonly RangeWithIpv6[]): string | undefined {
  const { length } = parseNetwork(network)!
  const texts = given.filter((one) => one.network === network).map(({ range }) => range)
  const ranges = texts.flatMap((text) => {
    const parsed = parseRange('private_ipv4', text)
    return parsed.ok ? [parsed.value] : []
  })
  if (length === SUBNET || ranges.length === 0) return undefined
  const ends = ranges.flatMap(({ first, last }) => [first, last]).sort((a, b) => (a < b ? -1 : 1))
  const count = ends.at(-1)! - ends[0]! + 1n
  if (count <= subnetsOf(length)) return undefined
  const needed = SUBNET - (count - 1n).toString(2).length
  return (
    `${network} is too small: it has ${subnetsOf(length)} networks of /${SUBNET}, and ` +
    `${texts.join(' with ')} ${count} addresses: give a /${needed}, or a /${SUBNET} that the servers share`
  )
}

function parseNetwork(text: string) {
  const parsed = parseRange('public_ipv6', text)
  if (!parsed.ok || parsed.value.prefixLength === undefined) return undefined
  const { first, last, prefixLength: length } = parsed.value
  return { first: first - 1n, last, length } // a pool does not give out the address of its network
}

/** How many /64 a network has. */
function subnetsOf(length: number): bigint {
  return 1n << BigInt(SUBNET - length)
}

function interfaceIdOf(macAddress: string): bigint {
  const digits = macAddress.replaceAll(':', '')
  return BigInt(`0x${digits.slice(0, 6)}fffe${digits.slice(6)}`) ^ (2n << 56n)
}

function format(address: bigint): string {
  return Address6.fromBigInt(address).correctForm()
}
