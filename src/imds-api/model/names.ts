/** Host names that the region gives. */

/** `ipv6.srv-6ilgo.gb1.example.com`: the host name of a server's IPv6 address. */
export function ipv6Fqdn(domain: string, serverId: string): string {
  return `ipv6.${serverId}.${domain}`
}

/** `cip-109-107-36-145.gb1.example.com`: the host name of a cloud IP. */
export function cloudIpFqdn(domain: string, publicIpv4: string): string {
  return `cip-${publicIpv4.replaceAll('.', '-')}.${domain}`
}
