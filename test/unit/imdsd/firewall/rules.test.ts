import { expect, test } from 'vitest'
import { firewallGuest } from '../../../../src/imdsd/firewall/firewall.ts'
import { buildRules, change, replacement, trial } from '../../../../src/imdsd/firewall/rules.ts'
import type { FirewallGuest, FirewallDocument } from '../../../../src/imdsd/firewall/document.ts'
import { aFullInstance, anInstance } from '../../../support/fixtures/instance.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'

/** The rules of a view of which nft refuses nothing. */
const rulesOf = (view: FirewallDocument) => buildRules(view, [])

const V4 = { network: 'default', address: '169.254.169.254', port: 80 }
const V6 = { network: 'default', address: 'fd00:ec2::254', port: 80 }

function aView(change: Partial<FirewallDocument> = {}): FirewallDocument {
  return {
    version: 'a.1',
    link: 'tap-{interfaceId}',
    listeners: [V4, V6],
    operator: { address: '127.0.0.1', port: 9169 },
    limitedDscp: 0x0b,
    guests: [firewallGuest(parsed(anInstance()))],
    ...change,
  }
}
/** The elements of a set or map. */
function elements(view: FirewallDocument, set: string): string[] {
  return [...(rulesOf(view).sets.get(set) ?? [])].map(([key, verdict]) =>
    verdict === '' ? key : `${key} : ${verdict}`,
  )
}
const guest = (change: Partial<FirewallGuest['interfaces'][number]>, limit = 1): FirewallGuest => {
  const base = firewallGuest(parsed(anInstance()))
  return { ...base, httpPutResponseHopLimit: limit, interfaces: [{ ...base.interfaces[0]!, ...change }] }
}

test('an interface is admitted by link, MAC, address and the listeners of its network together', () => {
  expect(elements(aView(), 'guests4')).toEqual([
    '"tap-int-ds42k" . 02:24:19:00:00:ee . 10.0.0.2 . 169.254.169.254 . 80',
  ])
  expect(elements(aView(), 'answers4')).toEqual(['"tap-int-ds42k" . 10.0.0.2 : goto hop_1'])
  expect(elements(aView(), 'links')).toEqual(['"tap-int-ds42k"'])
  const two = aView({
    listeners: [V4, { network: 'red', address: '10.9.0.1', port: 8080 }],
    guests: [guest({}), { ...guest({ id: 'int-red', network: 'red' }, 3), id: 'srv-red' }],
  })
  expect(elements(two, 'guests4')).toEqual([
    '"tap-int-ds42k" . 02:24:19:00:00:ee . 10.0.0.2 . 169.254.169.254 . 80',
    '"tap-int-red" . 02:24:19:00:00:ee . 10.0.0.2 . 10.9.0.1 . 8080',
  ])
  expect(elements(two, 'answers4')).toEqual([
    '"tap-int-ds42k" . 10.0.0.2 : goto hop_1',
    '"tap-int-red" . 10.0.0.2 : goto hop_3',
  ])
})

test('IPv6 addresses are admitted one by one, and owned prefixes as a whole', () => {
  const view = aView({ guests: [firewallGuest(parsed(aFullInstance()))] })
  expect(elements(view, 'guests6')).toEqual(
    ['2a02:1348:178::2', '2a02:1348:178::3'].map(
      (address) => `"tap-int-ds42k" . 02:24:19:00:00:ee . ${address} . fd00:ec2::254 . 80`,
    ),
  )
  expect(elements(view, 'prefixes6')).toEqual([
    '"tap-int-ds42k" . 02:24:19:00:00:ee . 2a02:1348:178:1::/64 . fd00:ec2::254 . 80',
  ])
  expect(elements(view, 'ranges6')).toEqual(['"tap-int-ds42k" . 2a02:1348:178:1::/64 : goto hop_1'])
})

test('nested prefixes and duplicate keys do not break the transaction', () => {
  const inside = aView({
    guests: [guest({ ipv6Prefixes: ['fd00:1:2:3::/64', 'fd00:1:2::/48', 'fd00:1:2:4::/64', 'fd00:1:3::/64'] })],
  })
  expect(elements(inside, 'prefixes6').map((element) => element.split(' . ')[2])).toEqual([
    'fd00:1:2::/48',
    'fd00:1:3::/64',
  ])
  const shared = aView({ link: 'br0', guests: [guest({}, 2), { ...guest({}, 5), id: 'srv-other' }] })
  expect(elements(shared, 'guests4')).toHaveLength(1)
  expect(elements(shared, 'answers4')).toEqual(['"br0" . 10.0.0.2 : goto hop_2'])
})

test('an interface without a possible link name is left out and reported, and affects no other', () => {
  const view = aView({ guests: [guest({ id: 'int-muchtoolong' }), { ...guest({ id: 'int-b' }), id: 'srv-b' }] })
  const { faults, interfaces } = rulesOf(view)
  expect(faults).toEqual([
    {
      instance: 'srv-abcde',
      message:
        'interface int-muchtoolong: its link name by the rule tap-{interfaceId} has 19 characters, and Linux allows 15; {interfaceId:11} takes the first 11 of an id',
    },
  ])
  expect([interfaces, elements(view, 'links')]).toEqual([1, ['"tap-int-b"']])
})

test('interfaces that would share a link are left out, except those of a bridge', () => {
  const two = [
    guest({ id: 'port-tenant-1' }),
    { ...guest({ id: 'port-tenant-2', macAddress: '02:24:19:00:00:ff', ipv4Addresses: ['10.0.0.6'] }), id: 'srv-b' },
  ]
  const { faults, interfaces, sets } = rulesOf(
    aView({ link: 'tap{interfaceId:11}', guests: [...two, { ...guest({ id: 'c' }), id: 'srv-c' }] }),
  )
  const message =
    'the rule tap{interfaceId:11} gives it the link name tapport-tenant, which interfaces port-tenant-1 and port-tenant-2 would share'
  expect(faults).toEqual([
    { instance: 'srv-abcde', message: `interface port-tenant-1: ${message}` },
    { instance: 'srv-b', message: `interface port-tenant-2: ${message}` },
  ])
  expect([interfaces, [...sets.get('links')!.keys()]]).toEqual([1, ['"tapc"']])
  expect(rulesOf(aView({ link: 'br0', guests: two })).interfaces).toBe(2)
})

test('an interface that nft rejected is left out with the message, and no other of its instance', () => {
  const two = { ...guest({}), interfaces: ['int-a', 'int-b'].map((id) => ({ ...guest({}).interfaces[0]!, id })) }
  const { faults, interfaces, sets } = buildRules(
    aView({ guests: [two, { ...guest({ id: 'int-c', macAddress: '02:24:19:00:00:ff' }), id: 'srv-b' }] }),
    [{ instance: 'srv-abcde', interface: 'int-a', message: 'nft: no' }],
  )
  expect(faults).toEqual([{ instance: 'srv-abcde', message: 'interface int-a: nft: no' }])
  expect([interfaces, [...sets.get('guests4')!.keys()].map((key) => key.split(' . ', 2).join())]).toEqual([
    2,
    ['"tap-int-b",02:24:19:00:00:ee', '"tap-int-c",02:24:19:00:00:ff'],
  ])
})

test('a trial names only its own table, which has no effect and is deleted', () => {
  const text = trial(rulesOf(aView({ guests: [firewallGuest(parsed(aFullInstance()))] })))
  expect(text.match(/inet imds\b/g)).toBeNull()
  expect(text).toMatch(
    /^table inet imds_trial\ndelete table inet imds_trial\ntable inet imds_trial \{\n {2}flags dormant\n[^]*\ndelete table inet imds_trial\n$/,
  )
})

test('a listener on a wildcard or IPv4-mapped address is reported: no packet has that destination', () => {
  for (const address of ['0.0.0.0', '::', '::ffff:169.254.169.254', '']) {
    const { faults, baseRules } = rulesOf(aView({ listeners: [{ ...V4, address }] }))
    expect(faults).toEqual([
      {
        instance: undefined,
        message: `a listener on "${address}" cannot be protected: it needs one IPv4 or IPv6 address of its own`,
      },
    ])
    expect(baseRules).toBe(rulesOf(aView({ listeners: [] })).baseRules)
  }
})

const HOSTILE = [
  '"',
  '}',
  '};',
  '; flush ruleset',
  '\n}\nflush ruleset\n',
  '10.0.0.2 } ; flush ruleset ; #',
  '/* ',
  '\\',
  '$x',
  '@links',
  '*',
  'include "/etc/passwd"',
  '10.0.0.2/0',
  '0.0.0.0/0',
  '::/0',
  'fe80::/64',
  '10.0.0.2-10.0.0.9',
  '{ 10.0.0.1, 10.0.0.2 }',
]

/** Every line that the elements may have. */
const LINE = new RegExp(
  [
    'add chain inet imds hop_\\d+',
    'flush chain inet imds hop_\\d+',
    'add rule inet imds hop_\\d+ ip dscp 0x0b ip ttl set \\d+ ip dscp set cs0',
    'add rule inet imds hop_\\d+ ip6 dscp 0x0b ip6 hoplimit set \\d+ ip6 dscp set cs0',
    '(add|delete) element inet imds \\w+ \\{',
    '\\}',
    ' {2}"[A-Za-z0-9_.-]{1,15}"( \\. [0-9a-f.:/]+)*( : goto hop_\\d+)?,?',
    '',
  ]
    .map((form) => `^${form}$`)
    .join('|'),
)

test('no value in a view can end a set and begin a rule', () => {
  for (const word of HOSTILE) {
    const guests: FirewallGuest[] = [
      ...(['id', 'network', 'macAddress'] as const).map((field) => guest({ [field]: word })),
      ...(['ipv4Addresses', 'ipv6Addresses', 'ipv6Prefixes'] as const).map((field) => guest({ [field]: [word] })),
      guest({}, word as unknown as number),
    ]
    for (const link of ['tap-{interfaceId}', 'br-{network}', word]) {
      for (const listeners of [
        [V4, V6],
        [
          { ...V4, address: word },
          { ...V4, network: word },
          { ...V4, port: word as unknown as number },
        ],
      ]) {
        for (const one of guests) {
          const rules = rulesOf(aView({ link, listeners, guests: [one] }))
          const none = rulesOf(aView({ link, listeners, guests: [] }))
          for (const text of [
            replacement(rules).slice(replacement(none).length),
            change(none, rules),
            change(rules, none),
          ])
            expect(text.split('\n').filter((line) => !LINE.test(line))).toEqual([])
          expect(rules.baseRules).toBe(
            rulesOf(
              aView({
                link: link === word ? 'br0' : link,
                listeners: listeners.filter(({ address, port }) => address !== word && port === 80),
                guests: [],
              }),
            ).baseRules,
          )
        }
      }
    }
    expect(rulesOf(aView({ link: word })).interfaces).toBe(0)
  }
})

test('a change contains only the differences, removals before additions', () => {
  const [none, one, other] = [
    aView({ guests: [] }),
    aView(),
    aView({ guests: [guest({}, 2), { ...guest({ id: 'int-b', ipv4Addresses: ['10.0.0.6'] }), id: 'srv-b' }] }),
  ].map(rulesOf)
  expect(change(one!, one!)).toBe('')
  expect(change(one!, none!)).toBe(
    [
      'delete element inet imds links {',
      '  "tap-int-ds42k"',
      '}',
      'delete element inet imds guests4 {',
      '  "tap-int-ds42k" . 02:24:19:00:00:ee . 10.0.0.2 . 169.254.169.254 . 80',
      '}',
      'delete element inet imds answers4 {',
      '  "tap-int-ds42k" . 10.0.0.2',
      '}',
      '',
    ].join('\n'),
  )
  const lines = change(one!, other!).split('\n')
  expect(lines.filter((line) => /^(add chain|delete|add element)/.test(line))).toEqual([
    'add chain inet imds hop_2',
    'delete element inet imds answers4 {',
    'add element inet imds links {',
    'add element inet imds guests4 {',
    'add element inet imds answers4 {',
  ])
  expect(lines.slice(-4)).toEqual([
    '  "tap-int-ds42k" . 10.0.0.2 : goto hop_2,',
    '  "tap-int-b" . 10.0.0.6 : goto hop_1',
    '}',
    '',
  ])
})

test('the rules are the same however the instances of a view change, as long as the listeners stay', () => {
  expect(rulesOf(aView({ guests: [] })).baseRules).toBe(rulesOf(aView({ guests: [guest({}, 7)] })).baseRules)
  expect(rulesOf(aView({ guests: [] })).baseRules).not.toBe(rulesOf(aView({ listeners: [V4] })).baseRules)
})

test.each<[string, Partial<FirewallGuest['interfaces'][number]>, number]>([
  ['one bad IPv4 address among good ones', { ipv4Addresses: ['10.0.0.2', '10.0.0.2 }'] }, 1],
  ['one bad IPv6 address among good ones', { ipv6Addresses: ['fd00::2', 'nothing'] }, 1],
  ['one bad IPv6 prefix among good ones', { ipv6Prefixes: ['fd00:1::/64', 'fd00:1::/65x'] }, 1],
  ['a hop limit of 0', {}, 0],
  ['a hop limit of 65', {}, 65],
  ['a hop limit of 1.5', {}, 1.5],
])('an interface with %s is left out and reported', (_what, change, limit) => {
  const { interfaces, faults } = rulesOf(aView({ guests: [guest(change, limit)] }))
  expect([interfaces, faults]).toEqual([
    0,
    [
      {
        instance: 'srv-abcde',
        message: 'interface "int-ds42k" has an invalid address, prefix, MAC address or hop limit',
      },
    ],
  ])
})

test('interfaces with hop limits of 1 and 64 are admitted, and each limit has its own chain', () => {
  const view = aView({
    guests: [guest({}, 64), { ...guest({ id: 'int-b', ipv4Addresses: ['10.0.0.6'] }, 1), id: 'srv-b' }],
  })
  expect(rulesOf(view).interfaces).toBe(2)
  const chains = replacement(rulesOf(view))
    .split('\n')
    .filter((line) => line.startsWith('add chain'))
  expect(chains.map((line) => /hop_\d+/.exec(line)?.[0])).toEqual(['hop_1', 'hop_64'])
})

test('responses to each IPv6 address of a guest may leave, with its hop limit', () => {
  const view = aView({ guests: [guest({ ipv6Addresses: ['fd00::2', 'fd00::3'] }, 2)] })
  expect(elements(view, 'answers6')).toEqual([
    '"tap-int-ds42k" . fd00::2 : goto hop_2',
    '"tap-int-ds42k" . fd00::3 : goto hop_2',
  ])
})

test.each([
  [1, true],
  [65_535, true],
  [0, false],
  [65_536, false],
  [9169.5, false],
])('the operator port %d is in the rules: %s', (port, isThere) => {
  const { baseRules } = rulesOf(aView({ operator: { address: '127.0.0.1', port } }))
  expect(/tcp dport \d/.test(baseRules)).toBe(isThere)
})
