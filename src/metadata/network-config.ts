/**
 * The network of an instance as NoCloud's network-config (version 2, as netplan has it) and as OpenStack's
 * network_data.json (contract H5, H6). Both identify interfaces by MAC address: only the guest knows their names, and
 * cloud-init cannot rename an interface that is in use.
 *
 * An address without a prefix length cannot be configured, so its interface uses DHCP for that family. IPv6 addresses
 * that DHCPv6 serves, and prefixes, are left to DHCPv6 and to router advertisements.
 */
import { netmaskOf, splitPrefix, subnetOf } from './address.ts'
import type { Instance, Interface } from './instance.ts'

/** How one family of an interface is configured. `addresses`: with prefix lengths. */
interface Family {
  readonly method: 'none' | 'static' | 'dhcp' | 'router-advertisements'
  readonly addresses: readonly string[]
  readonly gateway: string | undefined
}

function ipv4Of({ ipv4Addresses, ipv4Gateway }: Interface): Family {
  if (ipv4Addresses.length === 0) return NONE
  return staticOr('dhcp', ipv4Addresses, ipv4Gateway)
}

function ipv6Of({ ipv6Addresses, ipv6Prefixes, ipv6Gateway, dhcpv6 }: Interface): Family {
  if (ipv6Addresses.length > 0)
    return dhcpv6 ? { ...NONE, method: 'dhcp' } : staticOr('router-advertisements', ipv6Addresses, ipv6Gateway)
  return ipv6Prefixes.length > 0 ? { ...NONE, method: 'router-advertisements' } : NONE
}

const NONE: Family = { method: 'none', addresses: [], gateway: undefined }

function staticOr(other: 'dhcp' | 'router-advertisements', addresses: readonly string[], gateway: string | undefined) {
  return addresses.every((address) => splitPrefix(address).prefixLength !== undefined)
    ? ({ method: 'static', addresses, gateway } as const)
    : ({ ...NONE, method: other } as const)
}

/**
 * NoCloud's network-config, version 2. The only interface of an instance uses DHCP for an IPv4 address whose gateway is
 * not in the record: as a static address it would have no default route.
 */
export function networkConfig({ interfaces }: Instance): object {
  const ethernets = interfaces.map((nic) => {
    const ipv4 = interfaces.length === 1 && isAutomatic(nic) ? { ...NONE, method: 'dhcp' as const } : ipv4Of(nic)
    const ipv6 = ipv6Of(nic)
    const addresses = [...ipv4.addresses, ...ipv6.addresses]
    const routes = [routeTo('0.0.0.0/0', ipv4), routeTo('::/0', ipv6)].filter((route) => route !== undefined)
    const config = {
      match: { macaddress: nic.macAddress },
      ...(ipv4.method === 'dhcp' && { dhcp4: true }),
      ...(ipv6.method === 'dhcp' && { dhcp6: true }),
      ...(ipv6.method === 'router-advertisements' && { 'accept-ra': true }),
      ...(addresses.length > 0 && { addresses }),
      ...(routes.length > 0 && { routes }),
      ...(nic.nameservers.length > 0 && { nameservers: { addresses: nic.nameservers } }),
      mtu: nic.mtu,
    }
    return [nic.id, config] as const
  })
  return { version: 2, ethernets: Object.fromEntries(ethernets) }
}

/** DHCP gives an interface one IPv4 address. A gateway, resolvers or an MTU of the record may differ from DHCP's. */
function isAutomatic(nic: Interface): boolean {
  const [ipv4, ipv6] = [ipv4Of(nic), ipv6Of(nic)]
  return (
    ipv4.addresses.length <= 1 &&
    ipv4.gateway === undefined &&
    ipv6.method !== 'static' &&
    nic.nameservers.length === 0 &&
    nic.mtu === undefined
  )
}

/** `on-link`: the gateway is in no subnet of the interface. */
function routeTo(to: string, { addresses, gateway }: Family): object | undefined {
  if (gateway === undefined) return undefined
  const isReachable = gateway.startsWith('fe80:') || addresses.some((address) => isInSubnet(gateway, address))
  return { to, via: gateway, ...(!isReachable && { 'on-link': true }) }
}

function isInSubnet(address: string, withPrefix: string): boolean {
  return subnetOf(`${address}/${String(splitPrefix(withPrefix).prefixLength)}`) === subnetOf(withPrefix)
}

/** OpenStack's network_data.json. */
export function networkData({ interfaces }: Instance): object {
  return {
    links: interfaces.map(({ id, macAddress, mtu }) => ({
      id,
      vif_id: id,
      type: 'phy',
      ethernet_mac_address: macAddress,
      mtu,
    })),
    networks: interfaces.flatMap((nic) =>
      [...networksOf(ipv4Of(nic), 'ipv4'), ...networksOf(ipv6Of(nic), 'ipv6')].map((network, i) => ({
        id: `${nic.id}-${i}`,
        network_id: nic.network,
        link: nic.id,
        ...network,
      })),
    ),
    services: [...new Set(interfaces.flatMap(({ nameservers }) => nameservers))].map((address) => ({
      type: 'dns',
      address,
    })),
  }
}

function networksOf({ method, addresses, gateway }: Family, family: 'ipv4' | 'ipv6'): object[] {
  if (method === 'none') return []
  if (method === 'dhcp') return [{ type: family === 'ipv4' ? 'ipv4_dhcp' : 'ipv6_dhcpv6-stateful', routes: [] }]
  if (method === 'router-advertisements') return [{ type: 'ipv6_slaac', routes: [] }]
  const any = family === 'ipv4' ? '0.0.0.0' : '::'
  return addresses.map((withPrefix, i) => ({
    type: family,
    ip_address: splitPrefix(withPrefix).address,
    netmask: netmaskOf(withPrefix),
    routes: i === 0 && gateway !== undefined ? [{ network: any, netmask: any, gateway }] : [],
  }))
}
