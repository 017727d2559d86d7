/**
 * Ranges of addresses: a network (`10.0.0.0/16`, `2001:db8::/64`), a span (`127.0.0.2-127.0.0.254`), or MAC addresses
 * with a prefix length (`02:24:19:00:00:00/24`). The database knows which of them are in use.
 */
import { Address4, Address6 } from 'ip-address'
import type { Parsed } from '../../metadata/parsed.ts'

/** What pools give out. */
export const POOL_KINDS = ['mac', 'private_ipv4', 'public_ipv4', 'public_ipv6'] as const
export type PoolKind = (typeof POOL_KINDS)[number]

/**
 * A range: its first and last address as numbers, how many of them are given out, and the length of its network
 * (undefined for a span and for MAC addresses).
 */
export interface AddressRange {
  readonly kind: PoolKind
  readonly first: bigint
  readonly last: bigint
  readonly size: bigint
  readonly prefixLength: number | undefined
}

/**
 * The most addresses of a range. No region uses so many, and a JavaScript number up to here is exact. Only an IPv6
 * range can be larger.
 */
const MAX_SIZE = 2n ** 48n
/** From this length on an IPv4 network has no network and broadcast address. */
const POINT_TO_POINT = 31

export function parseRange(kind: PoolKind, text: string): Parsed<AddressRange, string> {
  const range =
    kind === 'mac' ? parseMacRange(text) : text.includes('-') ? parseSpan(kind, text) : parseNetwork(kind, text)
  return range === undefined
    ? { ok: false, faults: [`"${text}" is not ${FORMS[kind]}`] }
    : { ok: true, value: { kind, ...range } }
}

/** The address with a number, counted from 0. */
export function addressAt({ kind, first }: AddressRange, number: number): string {
  const value = first + BigInt(number)
  if (kind === 'mac') return value.toString(16).padStart(12, '0').match(/../g)!.join(':')
  return kind === 'public_ipv6' ? Address6.fromBigInt(value).correctForm() : Address4.fromBigInt(value).correctForm()
}

/** The number of an address, counted from 0; undefined: it is not in the range. */
export function numberIn({ kind, first, size }: AddressRange, address: string): number | undefined {
  const value = kind === 'mac' ? BigInt(`0x${address.replaceAll(':', '')}`) : addressNumber(kind, address)
  return value === undefined || value < first || value >= first + size ? undefined : Number(value - first)
}

/** Whether two ranges of one kind have an address in common. */
export function overlap(one: Bounds, other: Bounds): boolean {
  return one.first <= other.last && other.first <= one.last
}

type Bounds = Pick<AddressRange, 'first' | 'last'>

const FORMS: Readonly<Record<PoolKind, string>> = {
  mac: 'a range of MAC addresses such as 02:24:19:00:00:00/24',
  private_ipv4: 'an IPv4 network or span such as 10.0.0.0/16 or 10.0.0.10-10.0.0.99',
  public_ipv4: 'an IPv4 network or span such as 203.0.113.0/24 or 203.0.113.10-203.0.113.99',
  public_ipv6: 'an IPv6 network or span such as 2001:db8::/64',
}

type Span = Omit<AddressRange, 'kind'>

function span(first: bigint, last: bigint, prefixLength?: number): Span | undefined {
  if (last < first) return undefined
  const size = last - first + 1n
  return { first, last, size: size < MAX_SIZE ? size : MAX_SIZE, prefixLength }
}

function parseMacRange(text: string): Span | undefined {
  const { mac, length } = /^(?<mac>[0-9a-f]{2}(?::[0-9a-f]{2}){5})\/(?<length>\d{1,2})$/.exec(text)?.groups ?? {}
  if (mac === undefined || Number(length) > 46) return undefined
  const first = BigInt(`0x${mac.replaceAll(':', '')}`)
  const size = 1n << BigInt(48 - Number(length))
  // a multicast address is not one of a guest
  return first % size === 0n && (first >> 40n) % 2n === 0n ? span(first, first + size - 1n) : undefined
}

function parseSpan(kind: PoolKind, text: string): Span | undefined {
  const [first, last, third] = text.split('-').map((part) => addressNumber(kind, part.trim()))
  return first === undefined || last === undefined || third !== undefined ? undefined : span(first, last)
}

function parseNetwork(kind: PoolKind, text: string): Span | undefined {
  if (!text.includes('/')) return undefined
  if (kind === 'public_ipv6') {
    if (!Address6.isValid(text)) return undefined
    const network = new Address6(text)
    return span(network.startAddress().bigInt() + 1n, network.endAddress().bigInt(), network.subnetMask)
  }
  if (!Address4.isValid(text)) return undefined
  const network = new Address4(text)
  const [first, last] = [network.startAddress().bigInt(), network.endAddress().bigInt()]
  return network.subnetMask < POINT_TO_POINT
    ? span(first + 1n, last - 1n, network.subnetMask)
    : span(first, last, network.subnetMask)
}

function addressNumber(kind: PoolKind, text: string): bigint | undefined {
  if (kind === 'public_ipv6')
    return Address6.isValid(text) && !text.includes('/') ? new Address6(text).bigInt() : undefined
  return Address4.isValid(text) && !text.includes('/') ? new Address4(text).bigInt() : undefined
}
