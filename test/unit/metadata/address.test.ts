import { Address4, Address6 } from 'ip-address'
import { describe, expect, test } from 'vitest'
import {
  canonicalAddress,
  ipv6Digits,
  isIpv6Prefix,
  isOneAddress,
  isUnusableAddress,
  overlap,
  sourceOf,
  buildNetworkTest,
  isNetwork,
} from '../../../src/metadata/address.ts'
import { random } from '../../support/fixtures/generated-records.ts'

test.each([
  ['10.0.0.2', '10.0.0.2'],
  ['::ffff:10.0.0.2', '10.0.0.2'],
  ['FD00:0:0::2', 'fd00::2'],
  ['::', '::'],
  ['10.0.0.2/30', undefined],
  ['fe80::1%eth0', undefined],
  ['10.0.0', undefined],
  ['', undefined],
  ['x', undefined],
  ['10.0.0.256', undefined],
  ['fd00::2/64', undefined],
  ['fd00::g', undefined],
  ['fd00:2', undefined],
])('the canonical form of "%s" is %s', (address, canonical) => expect(canonicalAddress(address)).toBe(canonical))

test.each([
  ['169.254.169.254', true],
  ['127.0.0.1', true],
  ['fd00:ec2::254', true],
  ['0.0.0.1', true],
  ['::1', true],
  ['0.0.0.0', false],
  ['::', false],
  ['FD00::1', false],
  ['localhost', false],
  ['127.1', false],
  ['fd00::1/64', false],
])('packets can be sent to a listener on %s: %s', (address, isOne) => expect(isOneAddress(address)).toBe(isOne))

test.each([
  ['0.0.0.0', true],
  ['0.1.2.3', true],
  ['1.0.0.0', false],
  ['169.253.255.255', false],
  ['169.254.0.0', true],
  ['169.254.255.255', true],
  ['169.255.0.0', false],
  ['223.255.255.255', false],
  ['224.0.0.0', true],
  ['239.255.255.255', true],
  ['240.0.0.0', false],
  ['255.255.255.254', false],
  ['255.255.255.255', true],
  ['10.0.0.2', false],
  ['100.64.0.1', false],
  ['127.0.0.1', false],
  ['::', true],
  ['::1', false],
  ['fe7f:ffff::1', false],
  ['fe80::', true],
  ['fe80::1', true],
  ['febf:ffff::1', true],
  ['fec0::1', false],
  ['feff::1', false],
  ['ff00::', true],
  ['ff02::1', true],
  ['fe8::1', false],
  ['ff::1', false],
  ['fd00::fe80:1', false],
  ['2a02:1348:178:1::fe80', false],
  ['fc00::1', false],
])('E1: %s is unusable: %s', (address, unusable) => expect(isUnusableAddress(address)).toBe(unusable))

test('E1: the ip-address library finds the same addresses link-local or multicast', () => {
  const next = random(11)
  const number = (most: number) => Math.floor(next() * most)
  for (let i = 0; i < 20_000; i++) {
    const four = new Address4(
      [
        [1 + number(254), 169, 224 + number(16)][number(3)],
        number(2) === 0 ? 254 : number(256),
        number(256),
        number(256),
      ].join('.'),
    )
    expect([four.address, isUnusableAddress(four.address)]).toEqual([
      four.address,
      four.isLinkLocal() || four.isMulticast(),
    ])
    const six = new Address6(
      [
        ['fe', 'ff', 'fd', '20'][number(4)]! + number(256).toString(16).padStart(2, '0'),
        ...Array.from({ length: 7 }, () => number(3).toString(16)),
      ].join(':'),
    )
    expect([six.correctForm(), isUnusableAddress(six.correctForm())]).toEqual([
      six.correctForm(),
      six.isInSubnet(new Address6('fe80::/10')) || six.isMulticast(),
    ])
  }
})

test.each([
  ['2a02:1348:178:1::/64', '2a02134801780001'],
  ['2a02:1348:178::/48', '2a0213480178'],
  ['fd00::/124', 'fd00000000000000000000000000000'],
  ['::1', '00000000000000000000000000000001'],
  ['::', '00000000000000000000000000000000'],
  ['FD00:0::2', 'fd000000000000000000000000000002'],
])('the digits of %s are %s', (range, digits) => expect(ipv6Digits(range)).toBe(digits))

test('the digits of an IPv6 address are those of its longest form', () => {
  const next = random(7)
  for (let i = 0; i < 2000; i++) {
    const groups = Array.from({ length: 8 }, () => (next() < 0.5 ? 0 : Math.floor(next() * 65536)))
    const address = new Address6(groups.map((group) => group.toString(16)).join(':'))
    expect(ipv6Digits(address.correctForm())).toBe(address.canonicalForm().replaceAll(':', ''))
  }
})

test('text that is not an IPv6 address, or has dots, causes no error and matches no guest', () => {
  for (const text of ['', ':', 'x', '/', '::1.2.3.4', '1:2:3:4:5:6:7:8:9:a', 'fd00::x'])
    expect(ipv6Digits(text)).not.toMatch(/^[23f][0-9a-f]{31}$/)
})

describe('an interface may own', () => {
  test.each([
    '2a02:1348:178:1::/64',
    '2a02:1348:178::/48',
    '3fff::/52',
    'fd00:ec2:1::/56',
    'fc00::/60',
    '2a02::1:0:0:0/80',
    '2a02::10/124',
  ])('%s', (prefix) => expect(isIpv6Prefix(prefix)).toBe(true))
})

describe('an interface may not own', () => {
  test.each([
    ['a prefix of many networks', '2a02:1348::/32'],
    ['a prefix of another length than a multiple of 4', '2a02:1348:178::/63'],
    ['an address', '2a02::1/128'],
    ['an address without a length', '2a02::1'],
    ['an address inside the network', '2a02:1348:178:1::1/64'],
    ['an address inside the network that ends in zeros', '2a02:1348:178:1:1::/64'],
    ['a network in a longer form', '2a02:1348:178:1:0::/64'],
    ['a network in capitals', 'FD00::/64'],
    ['a length with a leading zero', 'fd00::/064'],
    ['a length that is none', 'fd00::/x'],
    ['no length', 'fd00::/'],
    ['two lengths', 'fd00::/64/64'],
    ['link-local addresses', 'fe80::/64'],
    ['multicast', 'ff02::/64'],
    ['loopback', '::/64'],
    ['IPv4-mapped addresses', '::ffff:0:0/96'],
    ['IPv4', '10.0.0.0/8'],
  ])('%s: %s', (_what, prefix) => expect(isIpv6Prefix(prefix)).toBe(false))
})

test.each([
  ['10.0.0.2', '10.0.0.2', true],
  ['10.0.0.2', '10.0.0.20', false],
  ['fd00::/64', 'fd00::2', true],
  ['fd00::/64', 'fd00:0:0:1::2', false],
  ['fd00::/64', 'fd00::/48', true],
  ['fd00::/64', 'fd00::/64', true],
  ['fd00:0:0:1::/64', 'fd00::/64', false],
  ['fd00::2', 'fd00::2', true],
  ['fd00::2', 'fd00::20', false],
  ['10.0.0.2', 'fd00::2', false],
])('%s and %s overlap: %s', (a, b, overlapping) => {
  expect([overlap(a, b), overlap(b, a)]).toEqual([overlapping, overlapping])
})

test.each([
  ['192.0.2.1', '192.0.2.1'],
  ['2001:db8::1', '20010db800000000'],
  ['2001:db8:0:1:ffff::', '20010db800000001'],
  ['fe80::1%tap-a', 'fe80000000000000%tap-a'],
  ['fe80::aaaa:bbbb:cccc:dddd%tap-a', 'fe80000000000000%tap-a'],
])('the user of %s is %s', (address, source) => expect(sourceOf(address)).toBe(source))

test.each<[string, boolean]>([
  ['10.1.0.1', true],
  ['10.1.255.255', true],
  ['10.2.0.1', false],
  ['192.0.2.1', true],
  ['192.0.2.2', false],
  ['fd00::1', true],
  ['fe80::1', false],
  ['2001:db8::1', true],
  ['2001:db8::2', false],
  ['::ffff:10.1.0.1', true],
  ['::ffff:10.2.0.1', false],
  ['', false],
  ['unknown', false],
  ['10.1.0.1:80', false],
])('%j belongs to the networks: %s', (address, isMember) => {
  expect(buildNetworkTest(['10.1.0.0/16', '192.0.2.1', 'fd00::/8', '2001:db8::1'])(address)).toBe(isMember)
})

test('an empty list has no address', () => expect(buildNetworkTest([])('127.0.0.1')).toBe(false))

test('a network is an address, or one with the length of its prefix', () => {
  const valid = ['192.0.2.1', '192.0.2.0/24', '0.0.0.0/0', '2001:db8::1', '2001:db8::/32', '::/0', '10.0.0.1/32']
  const wrong = [
    '',
    '192.0.2.0/33',
    '2001:db8::/129',
    '192.0.2',
    'a.example',
    '::1%lo',
    '10.0.0.0/8/8',
    '10.0.0.0/',
    '10.0.0.0/-1',
  ]
  expect([valid.filter(isNetwork), wrong.filter(isNetwork)]).toEqual([valid, []])
})
