/** Faults of the address pools of a region file beyond its schema: their form, and ranges that overlap. */
import { overlap, parseRange, POOL_KINDS } from '../model/pools.ts'
import { ipv6Faults } from '../model/server-ipv6.ts'
import type { RegionFile } from './schema.ts'

export function poolFaults(pools: RegionFile['address_pools']): string[] {
  return [
    ...POOL_KINDS.flatMap((kind) =>
      pools[kind].flatMap((range) => {
        const parsed = parseRange(kind, range)
        return parsed.ok ? [] : parsed.faults.map((fault) => `address_pools.${kind}: ${fault}`)
      }),
    ),
    ...overlaps(pools),
    ...ipv6Networks(pools).map((fault) => `address_pools.ipv6: ${fault}`),
  ]
}

function ipv6Networks({ ipv6 = {}, private_ipv4, public_ipv6 }: RegionFile['address_pools']): string[] {
  const given = Object.entries(ipv6).map(([range, network]) => ({ range, network }))
  return [
    ...given.filter(({ range }) => !private_ipv4.includes(range)).map(({ range }) => `private_ipv4 has no ${range}`),
    ...ipv6Faults(given, public_ipv6),
  ]
}

/** Ranges of one kind that overlap: an address in both could be given twice. */
function overlaps(pools: RegionFile['address_pools']): string[] {
  return POOL_KINDS.flatMap((kind) => {
    const ranges = [...new Set(pools[kind])].flatMap((text) => {
      const parsed = parseRange(kind, text)
      return parsed.ok ? [{ text, range: parsed.value }] : []
    })
    return ranges.flatMap((one, i) =>
      ranges
        .slice(i + 1)
        .filter((other) => overlap(one.range, other.range))
        .map((other) => `address_pools.${kind}: ${one.text} and ${other.text} overlap`),
    )
  })
}
