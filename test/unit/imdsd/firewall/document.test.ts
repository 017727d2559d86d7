import { describe, expect, test } from 'vitest'
import { parseFirewallDocument, type FirewallDocument } from '../../../../src/imdsd/firewall/document.ts'

const NIC = {
  id: 'int-ds42k',
  network: 'default',
  macAddress: '02:24:19:00:00:ee',
  ipv4Addresses: ['10.0.0.2'],
  ipv6Addresses: [],
  ipv6Prefixes: [],
}
const GUEST = { id: 'srv-abcde', httpPutResponseHopLimit: 1, interfaces: [NIC] }
const LISTENER = { network: 'default', address: '169.254.169.254', port: 80 }
const GOOD: FirewallDocument = {
  version: 'a.1',
  link: 'tap-{interfaceId}',
  listeners: [LISTENER],
  operator: { address: '127.0.0.1', port: 9169 },
  limitedDscp: 0x0b,
  guests: [GUEST],
}

test('a document of the daemon is accepted as it is, also without guests and listeners', () => {
  for (const document of [GOOD, { ...GOOD, guests: [], listeners: [] }])
    expect(parseFirewallDocument(JSON.parse(JSON.stringify(document)))).toEqual(document)
})

describe('a document is refused before any of it is used', () => {
  test.each<[string, unknown]>([
    ['that is null', null],
    ['that is a text', 'x'],
    ['that is a list', []],
    ['that is empty', {}],
    ['with a version that ends a statement', { ...GOOD, version: '1; flush ruleset' }],
    ['with a link rule that is too long', { ...GOOD, link: 'x'.repeat(65) }],
    ['without guests', { ...GOOD, guests: undefined }],
    ['with a guest that has no fields', { ...GOOD, guests: [{}] }],
    ['with a guest whose id is two words', { ...GOOD, guests: [{ ...GUEST, id: 'x y' }] }],
    ['with a hop limit that is text', { ...GOOD, guests: [{ ...GUEST, httpPutResponseHopLimit: '1' }] }],
    [
      'with an interface whose id ends a string',
      { ...GOOD, guests: [{ ...GUEST, interfaces: [{ ...NIC, id: 'int-a"' }] }] },
    ],
    [
      'with an interface whose network ends a set',
      { ...GOOD, guests: [{ ...GUEST, interfaces: [{ ...NIC, network: 'red}' }] }] },
    ],
    [
      'with a MAC address that is too long',
      { ...GOOD, guests: [{ ...GUEST, interfaces: [{ ...NIC, macAddress: '02:24:19:00:00:ee ' }] }] },
    ],
    [
      'with an address that is too long',
      { ...GOOD, guests: [{ ...GUEST, interfaces: [{ ...NIC, ipv4Addresses: ['1'.repeat(65)] }] }] },
    ],
    ['with a hop limit of 0', { ...GOOD, guests: [{ ...GUEST, httpPutResponseHopLimit: 0 }] }],
    ['with a hop limit of 65', { ...GOOD, guests: [{ ...GUEST, httpPutResponseHopLimit: 65 }] }],
    ...(
      [
        { macAddress: '02:24:19:00:00:EE' },
        { ipv4Addresses: ['10.0.0.2', '10.0.0.2 }'] },
        { ipv4Addresses: ['fd00::2'] },
        { ipv6Addresses: ['fd00::2', 'nothing'] },
        { ipv6Addresses: ['fd00:0::2'] },
        { ipv6Addresses: ['::ffff:10.0.0.2'] },
        { ipv6Prefixes: ['fd00:1::/64', 'fd00:1::/65'] },
        { ipv6Prefixes: ['fd00:1::1/64'] },
      ] as const
    ).map((change): [string, unknown] => [
      `with ${JSON.stringify(change)}`,
      { ...GOOD, guests: [{ ...GUEST, interfaces: [{ ...NIC, ...change }] }] },
    ]),
    ['with a port that is text', { ...GOOD, listeners: [{ ...LISTENER, port: '80' }] }],
    ['with a port out of range', { ...GOOD, listeners: [{ ...LISTENER, port: 65_536 }] }],
    ['without the operator listener', { ...GOOD, operator: {} }],
    ['of an older daemon, which does not mark packets', { ...GOOD, limitedDscp: undefined }],
    ['with a mark that every packet has', { ...GOOD, limitedDscp: 0 }],
    ['with a mark that is text', { ...GOOD, limitedDscp: '0x0b; flush ruleset' }],
  ])('%s', (_what, document) => expect(parseFirewallDocument(document) === undefined).toBe(true))
})
