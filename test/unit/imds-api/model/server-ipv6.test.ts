import { expect, test } from 'vitest'
import { isIpv6, isIpv6Prefix } from '../../../../src/metadata/address.ts'
import { ipv6Faults, ipv6OfServer } from '../../../../src/imds-api/model/server-ipv6.ts'

test.each<[string, string, string, string, string | undefined]>([
  // the address of a server of Brightbox whose MAC address is 02:24:19:f0:38:62
  ['2a02:1348:14c:e18::/64', '02:24:19:f0:38:62', '10.0.0.5', '2a02:1348:14c:e18:24:19ff:fef0:3862', undefined],
  ['fd00::/64', 'fe:ff:ff:ff:ff:ff', '10.0.0.5', 'fd00::fcff:ffff:feff:ffff', undefined],
  ['fd00::/64', '00:00:00:00:00:01', '10.0.0.5', 'fd00::200:ff:fe00:1', undefined],
  ...(
    [
      ['2001:db8:100::/48', '10.240.1.5', '2001:db8:100:105'],
      ['2001:db8:100::/48', '10.240.0.0', '2001:db8:100:0'],
      ['2001:db8:100:40::/58', '10.0.0.255', '2001:db8:100:7f'],
      ['2001:db8::/32', '10.240.1.5', '2001:db8:af0:105'],
    ] as const
  ).map(([network, ipv4, subnet]): [string, string, string, string, string] => [
    network,
    '02:24:19:00:00:01',
    ipv4,
    `${subnet}:24:19ff:fe00:1`,
    `${subnet.replace(/:0$/, ':')}${subnet.endsWith(':0') ? ':' : '::'}/64`,
  ]),
])('of %s, the server with %s and %s has %s and owns %s', (network, mac, ipv4, address, prefix) => {
  const given = ipv6OfServer(network, mac, ipv4)
  expect(given).toEqual({ address, prefix })
  expect([isIpv6(address), prefix === undefined || isIpv6Prefix(prefix)], 'as a record takes them').toEqual([
    true,
    true,
  ])
})

const RANGE = '10.240.0.0/16'

test.each<[string, string]>([
  ['2001:db8::', '"2001:db8::" is not an IPv6 network such as 2001:db8:100::/48'],
  ['10.0.0.0/8', '"10.0.0.0/8" is not an IPv6 network such as 2001:db8:100::/48'],
  ['2001:db8::1-2001:db8::9', '"2001:db8::1-2001:db8::9" is not an IPv6 network such as 2001:db8:100::/48'],
  ['2001:DB8:0::/48', '2001:DB8:0::/48 is not in its shortest form: write 2001:db8::/48'],
  ['2001:db8::1/64', '2001:db8::1/64 is not in its shortest form: write 2001:db8::/64'],
  ['2001:db8:100:1::/48', '2001:db8:100:1::/48 is not in its shortest form: write 2001:db8:100::/48'],
  ['fe80::/64', 'fe80::/64 is no network of global or unique local addresses: give one of 2000::/3 or fc00::/7'],
  ['2001:db8:0:0:1::/80', '2001:db8:0:0:1::/80 is too small: give a /64 or a larger network'],
  [
    '2001:db8:100::/49',
    '2001:db8:100::/49 is too small: it has 32768 networks of /64, and 10.240.0.0/16 65534 addresses: give a /48, or a /64 that the servers share',
  ],
])('%s: %s', (network, fault) => expect(ipv6Faults([{ range: RANGE, network }], [])).toEqual([fault]))

test.each(['2001:db8:100::/48', '2001:db8:100::/64', 'fd00::/8', '2001::/16'])('%s is right', (network) => {
  expect(ipv6Faults([{ range: RANGE, network }], ['2a02::/64', '2a02:1::1-2a02:1::9'])).toEqual([])
})

test('networks that overlap each other, or the addresses of cloud IPs, are faults', () => {
  const given = (...networks: readonly string[]) => networks.map((network, i) => ({ range: `10.${i}.0.0/24`, network }))
  expect(ipv6Faults(given('2001:db8::/48', '2001:db8:0:ff::/64'), [])).toEqual([
    '2001:db8::/48 and 2001:db8:0:ff::/64 overlap',
  ])
  expect(ipv6Faults(given('2001:db8:5::/64'), ['2001:db8:4::/46', '2001:db8:5::9-2001:db8:5::a'])).toEqual([
    '2001:db8:5::/64 and 2001:db8:4::/46 overlap',
    '2001:db8:5::/64 and 2001:db8:5::9-2001:db8:5::a overlap',
  ])
})

test('ranges share a /64, and a larger network if it has a /64 for each of their addresses', () => {
  const given = (network: string, ...ranges: readonly string[]) => ranges.map((range) => ({ range, network }))
  expect(ipv6Faults(given('fd00::/64', '10.0.0.0/16', '10.9.0.0/16'), [])).toEqual([])
  expect(ipv6Faults(given('fd00::/56', '10.0.0.9-10.0.0.99', '10.0.0.128/25'), [])).toEqual([])
  expect(ipv6Faults(given('fd00::/56', '10.0.1.0/24', '10.0.0.9-10.0.0.99'), [])).toEqual([
    'fd00::/56 is too small: it has 256 networks of /64, and 10.0.1.0/24 with 10.0.0.9-10.0.0.99 502 addresses: ' +
      'give a /55, or a /64 that the servers share',
  ])
})

test('no two servers of a network have one address or prefix, up to its last /64', () => {
  const all = Array.from({ length: 256 }, (_, i) =>
    ipv6OfServer('2001:db8:0:ff00::/56', '02:24:19:00:00:01', `10.0.${i < 100 ? 1 : 0}.${i}`),
  )
  expect(new Set(all.map((one) => one.prefix)).size).toBe(256)
  expect(new Set(all.map((one) => one.address)).size).toBe(256)
})
