import { expect, test } from 'vitest'
import { firewallGuest } from '../../../../src/imdsd/firewall/documents.ts'
import { buildRules, compareListing, replacement } from '../../../../src/imdsd/firewall/rules.ts'
import {
  parseFirewallDocument,
  type FirewallGuest,
  type FirewallDocument,
} from '../../../../src/imdsd/firewall/document.ts'
import { aFullInstance, anInstance } from '../../../support/fixtures/instance.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'

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
/** The mark of srv-abcde on the link tap-int-ds42k. */
const MARK = '3936017624'

/** The elements of a set or map. */
function elements(view: FirewallDocument, set: string): string[] {
  return [...(buildRules(view).sets.get(set) ?? [])].map(([key, verdict]) =>
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
  expect(elements(aView(), 'answers4')).toEqual([`"tap-int-ds42k" . ${MARK} . 169.254.169.254 . 10.0.0.2 : goto hop_1`])
  expect(elements(aView(), 'marks')).toEqual([`"tap-int-ds42k" . 02:24:19:00:00:ee : ${MARK}`])
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
    `"tap-int-ds42k" . ${MARK} . 169.254.169.254 . 10.0.0.2 : goto hop_1`,
    `"tap-int-red" . 1708571881 . 10.9.0.1 . 10.0.0.2 : goto hop_3`,
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
  expect(elements(view, 'ranges6')).toEqual([`"tap-int-ds42k" . fd00:ec2::254 . 2a02:1348:178:1::/64 : goto hop_1`])
  expect(elements(view, 'marked')).toEqual([`"tap-int-ds42k" . ${MARK}`])
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
  expect(elements(shared, 'marks')).toEqual(['"br0" . 02:24:19:00:00:ee : 2666122060'])
  expect(elements(shared, 'answers4')).toEqual([
    '"br0" . 2666122060 . 169.254.169.254 . 10.0.0.2 : goto hop_2',
    '"br0" . 3258328585 . 169.254.169.254 . 10.0.0.2 : goto hop_5',
  ])
})

test('an interface without a possible link name is left out and reported, and affects no other', () => {
  const view = aView({ guests: [guest({ id: 'int-muchtoolong' }), { ...guest({ id: 'int-b' }), id: 'srv-b' }] })
  const { faults, interfaces } = buildRules(view)
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
  const { faults, interfaces, sets } = buildRules(
    aView({ link: 'tap{interfaceId:11}', guests: [...two, { ...guest({ id: 'c' }), id: 'srv-c' }] }),
  )
  const message =
    'the rule tap{interfaceId:11} gives it the link name tapport-tenant, which interfaces port-tenant-1 and port-tenant-2 would share'
  expect(faults).toEqual([
    { instance: 'srv-abcde', message: `interface port-tenant-1: ${message}` },
    { instance: 'srv-b', message: `interface port-tenant-2: ${message}` },
  ])
  expect([interfaces, [...sets.get('links')!.keys()]]).toEqual([1, ['"tapc"']])
  expect(buildRules(aView({ link: 'br0', guests: two })).interfaces).toBe(2)
})

test('a listener on a wildcard or IPv4-mapped address is reported: no packet has that destination', () => {
  for (const address of ['0.0.0.0', '::', '::ffff:169.254.169.254', '']) {
    const { faults, baseRules } = buildRules(aView({ listeners: [{ ...V4, address }] }))
    expect(faults).toEqual([
      {
        instance: undefined,
        message: `a listener on "${address}" cannot be protected: it needs one IPv4 or IPv6 address of its own`,
      },
    ])
    expect(baseRules).toBe(buildRules(aView({ listeners: [] })).baseRules)
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
    'add element inet imds \\w+ \\{',
    '\\}',
    '"[A-Za-z0-9_.-]{1,15}"( \\. [0-9a-fx.:/]+)*( : (goto hop_\\d+|\\d+))?,?',
    '',
  ]
    .map((form) => `^${form}$`)
    .join('|'),
)

function hostileLines(document: FirewallDocument): string[] {
  const rules = buildRules(document)
  const elements = replacement(rules).slice(replacement({ ...rules, sets: new Map() }).length)
  return elements.split('\n').filter((line) => !LINE.test(line))
}

test('no value in a view can end a set and begin a rule', () => {
  for (const word of HOSTILE) {
    const guests: FirewallGuest[] = [
      ...(['id', 'network', 'macAddress'] as const).map((field) => guest({ [field]: word })),
      ...(['ipv4Addresses', 'ipv6Addresses', 'ipv6Prefixes'] as const).map((field) => guest({ [field]: [word] })),
      guest({}, word as unknown as number),
    ]
    for (const one of guests) {
      const document = parseFirewallDocument(aView({ guests: [one] }))
      expect(document === undefined ? [] : hostileLines(document)).toEqual([]) // 10.0.0.2-10.0.0.9 is a valid id
    }
    const rules = (change: Partial<FirewallDocument>) => buildRules(parseFirewallDocument(aView(change))!)
    const bad = rules({ link: word })
    expect([bad.interfaces, bad.baseRules]).toEqual([0, rules({ link: 'br0', guests: [] }).baseRules])
    expect(rules({ listeners: [{ ...V4, address: word }], guests: [] }).baseRules).toBe(
      rules({ listeners: [], guests: [] }).baseRules,
    )
  }
  expect(hostileLines(aView({ guests: [firewallGuest(parsed(aFullInstance()))] }))).toEqual([])
})

test('the base rules are the same however the instances change, as long as listeners and hop limits stay', () => {
  const baseRules = (change: Partial<FirewallDocument>) => buildRules(aView(change)).baseRules
  expect(baseRules({ guests: [guest({})] })).toBe(baseRules({ guests: [guest({ id: 'int-b' }), guest({})] }))
  expect(baseRules({})).not.toBe(baseRules({ guests: [guest({}, 7)] }))
  expect(baseRules({})).not.toBe(baseRules({ listeners: [V4] }))
})

test('interfaces with hop limits of 1 and 64 are admitted, and each limit has its own chain', () => {
  const view = aView({
    guests: [guest({}, 64), { ...guest({ id: 'int-b', ipv4Addresses: ['10.0.0.6'] }, 1), id: 'srv-b' }],
  })
  expect(buildRules(view).interfaces).toBe(2)
  expect(replacement(buildRules(view)).match(/chain hop_\d+/g)).toEqual(['chain hop_1', 'chain hop_64'])
})

test('a replacement has the version in the comment of the table, and begins with the counts', () => {
  const text = replacement(buildRules(aView()), new Map([['strays', { packets: 5, bytes: 300 }]]))
  expect(text).toMatch(/^table inet imds\ndelete table inet imds\ntable inet imds \{\n {2}comment "a.1"\n/)
  expect(text).toContain('  counter strays { packets 5 bytes 300; }\n')
  expect(text).toContain('  counter admitted { packets 0 bytes 0; }\n')
})

test('a listing is compared in any order, without what guests change, in canonical addresses', () => {
  const rules = buildRules(aView({ guests: [guest({ ipv6Addresses: ['::102:304'] })] }))
  const sets = [...rules.sets].map(([name, elements]) => ({
    map: { name, handle: 1, elem: [...elements].map((element) => element.filter(Boolean).map(listedKey)).toReversed() },
  }))
  const opened = (address: string) => ({ set: { name: 'opened', elem: [address] } })
  const whole = compareListing([...sets, opened('a')], rules)
  expect(whole.hasElements).toBe(true)
  const others = sets.map(({ map }) => ({ map: { ...map, handle: 2 } })).toReversed()
  expect(compareListing([opened('b'), ...others], rules)).toEqual(whole)
  const [{ map }, ...rest] = sets as [(typeof sets)[0], ...typeof sets]
  for (const elem of [map.elem.slice(1), [...map.elem, 'x']])
    expect(compareListing([{ map: { ...map, elem } }, ...rest, opened('a')], rules).hasElements).toBe(false)
  const renamed = compareListing([{ map: { ...map, name: 'x' } }, ...rest, opened('a')], rules)
  expect(renamed.frame).not.toBe(whole.frame)
  expect(compareListing([], rules).hasElements).toBe(false)
})

/** A key or a value of an element, as nft lists it. */
function listedKey(text: string) {
  const concat = text
    .replaceAll('"', '')
    .split(' . ')
    .map((part) => (/^\d+$/.test(part) ? Number(part) : part.replace('::102:304', '::1.2.3.4')))
  return text.startsWith('goto ') ? { goto: { target: text.slice(5) } } : concat.length > 1 ? { concat } : concat[0]!
}

test('responses to each IPv6 address of a guest may leave, with its hop limit', () => {
  const view = aView({ guests: [guest({ ipv6Addresses: ['fd00::2', 'fd00::3'] }, 2)] })
  expect(elements(view, 'answers6')).toEqual([
    `"tap-int-ds42k" . ${MARK} . fd00:ec2::254 . fd00::2 : goto hop_2`,
    `"tap-int-ds42k" . ${MARK} . fd00:ec2::254 . fd00::3 : goto hop_2`,
  ])
})

test.each([
  [1, true],
  [65_535, true],
  [0, false],
])('the operator port %d is in the rules: %s', (port, isThere) => {
  const { baseRules } = buildRules(aView({ operator: { address: '127.0.0.1', port } }))
  expect(/tcp dport \d/.test(baseRules)).toBe(isThere)
})
