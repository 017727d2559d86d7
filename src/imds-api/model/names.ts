/** Host names that the region gives. */

/** `cip-109-107-36-145.gb1.example.com`: the host name of a cloud IP. */
export function cloudIpFqdn(domain: string, publicIpv4: string): string {
  return `cip-${publicIpv4.replaceAll('.', '-')}.${domain}`
}
