/** Tests whether an address belongs to a list of networks. */
import { BlockList, isIP, isIPv6 } from 'node:net'

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
