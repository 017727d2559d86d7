import { describe, expect, test } from 'vitest'
import { networkConfig, networkData } from '../../../src/metadata/network-config.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const MAC = '02:24:19:00:00:ee'
const OTHER = { id: 'int-b', macAddress: '02:24:19:00:00:0a' }

/** Both forms of an instance with one interface, in NoCloud's form beside another one without addresses. */
function formsOf(nic: Record<string, unknown>) {
  const first = { id: 'int-a', macAddress: MAC, ...nic }
  const [alone, both] = [[first], [first, OTHER]].map((interfaces) => parsed(anInstance({ interfaces })))
  const { ethernets } = networkConfig(both!) as { ethernets: Record<string, object> }
  return {
    config: ethernets['int-a'],
    data: networkData(alone!) as { links: object[]; networks: object[]; services: object[] },
    alone: (networkConfig(alone!) as { ethernets: Record<string, object> }).ethernets['int-a'],
  }
}

describe('an interface', () => {
  test('with prefix lengths is configured with its addresses, gateways and resolvers', () => {
    const { config, data } = formsOf({
      ipv4Addresses: ['10.0.0.2/30', '10.0.9.2/24'],
      ipv4Gateway: '10.0.0.1',
      ipv6Addresses: ['fd00::2/64'],
      ipv6Gateway: 'fe80::1',
      nameservers: ['10.0.0.53', 'fd00::53'],
    })
    expect(config).toEqual({
      match: { macaddress: MAC },
      addresses: ['10.0.0.2/30', '10.0.9.2/24', 'fd00::2/64'],
      routes: [
        { to: '0.0.0.0/0', via: '10.0.0.1' },
        { to: '::/0', via: 'fe80::1' },
      ],
      nameservers: { addresses: ['10.0.0.53', 'fd00::53'] },
    })
    expect(data.networks).toEqual([
      {
        id: 'int-a-0',
        network_id: 'default',
        link: 'int-a',
        type: 'ipv4',
        ip_address: '10.0.0.2',
        netmask: '255.255.255.252',
        routes: [{ network: '0.0.0.0', netmask: '0.0.0.0', gateway: '10.0.0.1' }],
      },
      {
        id: 'int-a-1',
        network_id: 'default',
        link: 'int-a',
        type: 'ipv4',
        ip_address: '10.0.9.2',
        netmask: '255.255.255.0',
        routes: [],
      },
      {
        id: 'int-a-2',
        network_id: 'default',
        link: 'int-a',
        type: 'ipv6',
        ip_address: 'fd00::2',
        netmask: 'ffff:ffff:ffff:ffff::',
        routes: [{ network: '::', netmask: '::', gateway: 'fe80::1' }],
      },
    ])
    expect(data.services).toEqual([
      { type: 'dns', address: '10.0.0.53' },
      { type: 'dns', address: 'fd00::53' },
    ])
  })

  test('without prefix lengths uses DHCP and router advertisements, and no gateway of the record', () => {
    const { config, data } = formsOf({
      ipv4Addresses: ['10.0.0.2'],
      ipv4Gateway: '10.0.0.1',
      ipv6Addresses: ['fd00::2'],
    })
    expect(config).toEqual({ match: { macaddress: MAC }, dhcp4: true, 'accept-ra': true })
    expect(data.networks).toMatchObject([{ type: 'ipv4_dhcp' }, { type: 'ipv6_slaac' }])
  })

  test('whose IPv6 addresses DHCPv6 serves uses that; one that owns a prefix uses router advertisements', () => {
    const dhcp = formsOf({ ipv6Addresses: ['fd00::2/64'], dhcpv6: true })
    expect(dhcp.config).toEqual({ match: { macaddress: MAC }, dhcp6: true })
    expect(dhcp.data.networks).toMatchObject([{ type: 'ipv6_dhcpv6-stateful' }])
    const prefix = formsOf({ ipv6Prefixes: ['2a02:1348:178:1::/64'] })
    expect(prefix.config).toEqual({ match: { macaddress: MAC }, 'accept-ra': true })
    expect(prefix.data.networks).toMatchObject([{ type: 'ipv6_slaac' }])
  })

  test('whose gateway is in no subnet of it reaches that on the link', () => {
    const { config } = formsOf({ ipv4Addresses: ['10.0.0.2/32'], ipv4Gateway: '10.0.0.1' })
    expect(config).toMatchObject({ routes: [{ to: '0.0.0.0/0', via: '10.0.0.1', 'on-link': true }] })
  })

  test('with an MTU has it in both forms, also where DHCP configures it', () => {
    const { config, data } = formsOf({ ipv4Addresses: ['10.0.0.2'], mtu: 1450 })
    expect(config).toEqual({ match: { macaddress: MAC }, dhcp4: true, mtu: 1450 })
    expect(data.links).toMatchObject([{ id: 'int-a', mtu: 1450 }])
  })

  test('without addresses has none', () => {
    const { config, data } = formsOf({})
    expect([config, data.networks]).toEqual([{ match: { macaddress: MAC } }, []])
  })
})

test('interfaces have no names, only their MAC addresses', () => {
  const second = { ...OTHER, ipv4Addresses: ['10.1.0.2/24'] }
  const first = { id: 'int-a', macAddress: MAC, ipv4Addresses: ['10.0.0.2/24'] }
  const instance = parsed(anInstance({ interfaces: [first, second] }))
  expect(networkConfig(instance)).toEqual({
    version: 2,
    ethernets: {
      'int-a': { match: { macaddress: MAC }, addresses: ['10.0.0.2/24'] },
      'int-b': { match: { macaddress: OTHER.macAddress }, addresses: ['10.1.0.2/24'] },
    },
  })
  const { links } = networkData(instance) as { links: object[] }
  expect(links[0]).toEqual({ id: 'int-a', vif_id: 'int-a', type: 'phy', ethernet_mac_address: MAC })
})

describe('H5: the only interface of an instance', () => {
  const dhcp4 = { dhcp4: true }
  test.each([
    ['no address uses DHCP', {}, dhcp4],
    ['one IPv4 address uses DHCP, which has the gateway', { ipv4Addresses: ['10.0.0.2/30'] }, dhcp4],
    [
      'two IPv4 addresses has both',
      { ipv4Addresses: ['10.0.0.2/30', '10.0.0.3/30'] },
      { addresses: ['10.0.0.2/30', '10.0.0.3/30'] },
    ],
    [
      'an address and a gateway has both',
      { ipv4Addresses: ['10.0.0.2/30'], ipv4Gateway: '10.0.0.1' },
      { addresses: ['10.0.0.2/30'], routes: [{ to: '0.0.0.0/0', via: '10.0.0.1' }] },
    ],
    ['no prefix length uses DHCP', { ipv4Addresses: ['10.0.0.2'], ipv4Gateway: '10.0.0.1' }, dhcp4],
    [
      'IPv6 addresses of DHCPv6 uses DHCP for both',
      { ipv6Addresses: ['fd00::2/64'], dhcpv6: true },
      { dhcp4: true, dhcp6: true },
    ],
    [
      'an IPv6 address without a prefix length uses router advertisements',
      { ipv6Addresses: ['fd00::2'] },
      { dhcp4: true, 'accept-ra': true },
    ],
    ['an MTU has that', { ipv4Addresses: ['10.0.0.2'], mtu: 1450 }, { dhcp4: true, mtu: 1450 }],
  ])('with %s', (_, nic, expected) => expect(formsOf(nic).alone).toEqual({ match: { macaddress: MAC }, ...expected }))
})
