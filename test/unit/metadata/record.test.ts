import { describe, expect, test } from 'vitest'
import { MAX_RECORD_BYTES } from '../../../src/metadata/instance.ts'
import { InstanceSchema } from '../../../src/metadata/schema.ts'
import { parse, sealOf, sizeFaults } from '../../../src/metadata/record.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aFullInstance, anInstance, keysOfUser } from '../../support/fixtures/instance.ts'

const nic = (change: Record<string, unknown>) => [
  { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'], ...change },
]

const event = (change: Record<string, unknown> = {}) => ({
  id: 'evt-1',
  code: 'system-reboot',
  notBefore: '2026-11-20T15:04:05Z',
  description: 'a reboot',
  ...change,
})

const many = <T>(count: number, make: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => make(i))
const tags = (count: number) => Object.fromEntries(many(count, (i) => [`k${i}`, 'x']))

function faultsOf(record: unknown): string[] {
  const result = parse(record)
  return result.ok ? [] : result.faults.map(({ path, message }) => `${path} ${message}`)
}

test('a good record gets its defaults', () => {
  const instance = parsed(anInstance())
  expect(instance.options).toEqual({
    httpEndpoint: 'enabled',
    httpTokens: 'optional',
    httpPutResponseHopLimit: 1,
    httpProtocolIpv6: 'disabled',
    instanceMetadataTags: 'disabled',
    openstack: 'disabled',
    reports: 'disabled',
  })
  expect(instance.interfaces[0]).toMatchObject({
    network: 'default',
    ipv6Addresses: [],
    ipv6Prefixes: [],
    dhcpv6: false,
  })
  expect(parse(aFullInstance()).ok).toBe(true)
})

test('ids of other clouds are valid', () => {
  for (const id of [
    'a',
    'srv-x1y2z',
    'i-0123456789abcdef0',
    '1f9a7c3e-52d4-4b8e-9c1a-0d6f2e8b7a90',
    'vm.example_1',
    'A'.repeat(64),
  ]) {
    const interfaces = [
      { id, macAddress: '02:24:19:00:00:ee', cloudIps: [{ id, publicIpv4: '10.0.0.1', fqdn: 'a.b' }] },
    ]
    const record = anInstance({
      id,
      account: id,
      serverType: { id, handle: 'x' },
      image: id,
      zone: { id, handle: 'x' },
      interfaces,
      serverGroups: [{ id, name: 'x' }],
      publicKeys: [{ user: id, key: 'ssh-rsa AAAA' }],
    })
    expect(faultsOf(record)).toEqual([])
  }
})

test('parse does not change its input', () => {
  const record = anInstance()
  const before = JSON.stringify(record)
  parse(record)
  expect(JSON.stringify(record)).toBe(before)
})

test('unknown fields are ignored at every depth, so that a publisher may be newer than a daemon', () => {
  const deep = JSON.parse('['.repeat(20_000) + ']'.repeat(20_000)) as unknown
  const instance = parsed(
    anInstance({ later: { x: 1 }, deep, interfaces: nic({ later: true }), blockDevices: { root: 'sda1', nvme0: 'x' } }),
  )
  expect(instance).not.toHaveProperty('later')
  expect(instance).not.toHaveProperty('deep')
  expect(instance.interfaces[0]).not.toHaveProperty('later')
  expect(instance.blockDevices).toEqual({ root: 'sda1' })
})

test('all faults are reported at once, each with its path, none with a value of the record', () => {
  const faults = faultsOf({
    ...anInstance(),
    id: 'SECRET!',
    revision: 0,
    region: undefined,
    zone: {},
    interfaces: nic({ macAddress: 'SECRET', ipv4Addresses: ['SECRET'] }),
    publicKeys: [{ user: 'usr-a', key: 'SECRET' }],
  })
  expect(faults.map((fault) => fault.split(' ', 1)[0]).sort()).toEqual([
    '/id',
    '/interfaces/0/ipv4Addresses/0',
    '/interfaces/0/macAddress',
    '/publicKeys/0/key',
    '/region',
    '/revision',
    '/zone/handle',
    '/zone/id',
  ])
  expect(faults.join()).not.toContain('SECRET')
})

describe('a record is faulty', () => {
  test.each<[string, unknown, RegExp]>([
    ['that is no object', [], /^ must be a JSON object/],
    ['that is nothing', null, /^ must be a JSON object$/],
    ['that is a text', 'srv-a', /^ must be a JSON object$/],
    ['that is not there', undefined, /^ must be a JSON object$/],
  ])('%s', (_what, record, fault) => expect(faultsOf(record).join('\n')).toMatch(fault))

  test.each<[string, Record<string, unknown>, RegExp]>([
    ['without an id', { id: undefined }, /^\/id is missing: must be an id/],
    ['without a list of interfaces', { interfaces: undefined }, /^\/interfaces is missing$/],
    ['of another schema', { schema: 2 }, /^\/schema must be the number 1/],
    ['without a schema', { schema: undefined }, /^\/schema/],
    ['with a revision that is no whole number', { revision: 1.5 }, /^\/revision/],
    ['with a revision as text', { revision: '1' }, /^\/revision/],
    [
      'without an id',
      { id: '' },
      /^\/id must be an id: 1 to 64 letters, digits, "\.", "_" or "-", beginning with a letter or digit$/,
    ],
    ['of an unknown architecture', { architecture: 'vax' }, /^\/architecture must be one of arm64/],
    ['launched at no time', { launchTime: 'today' }, /^\/launchTime must be a time such as/],
    ['launched on no day', { launchTime: '2026-02-30T00:00:00Z' }, /^\/launchTime must be a time such as/],
    ['with empty vendor data', { vendorData: '' }, /^\/vendorData/],
    ['with an event of an unknown code', { events: [event({ code: 'x' })] }, /^\/events\/0\/code must be one of/],
    ['with an event of no time', { events: [event({ notBefore: '21 Jan 2019' })] }, /notBefore must be a time/],
    ['with an event on two lines', { events: [event({ description: 'a\nb' })] }, /^\/events\/0\/description/],
    ['with two events of one id', { events: [event(), event()] }, /^\/events\/1\/id is the same event as/],
    ['with an id of 65 characters', { id: 'a'.repeat(65) }, /^\/id must be an id: 1 to 64/],
    ['with an id that begins with a dot', { id: '.a' }, /^\/id must be an id/],
    ['with an id with a slash', { id: 'a/b' }, /^\/id must be an id/],
    ['with an id with a space', { id: 'a b' }, /^\/id must be an id/],
    ['with an id on two lines', { id: 'a\n' }, /^\/id must be an id/],
    ['with an id that is not ASCII', { id: 'é' }, /^\/id must be an id/],
    ['with a host name with an underscore', { fqdn: 'a_b.example.com' }, /^\/fqdn .*no underscore/],
    ['with a host name that is too long', { fqdn: 'a.'.repeat(126) + 'bc' }, /^\/fqdn .*at most 253 char/],
    ['with a host name that is an address', { fqdn: '10.0.0.2' }, /^\/fqdn/],
    ['with a host name on two lines', { fqdn: 'a.example.com\nb' }, /^\/fqdn/],
    [
      'with one interface twice',
      { interfaces: [...nic({}), { id: 'int-a', macAddress: '02:24:19:00:00:ef' }] },
      /interfaces\/1\/id is the same interface as \/interfaces\/0\/id/,
    ],
    [
      'with one IPv6 address twice',
      {
        interfaces: [
          ...nic({ ipv6Addresses: ['fd00::2'] }),
          { id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv6Addresses: ['fd00::2/64'] },
        ],
      },
      /interfaces\/1\/ipv6Addresses\/0 is the same address as \/interfaces\/0/,
    ],
    [
      'with one IPv6 prefix twice',
      {
        interfaces: [
          ...nic({ ipv6Prefixes: ['fd00:1::/64'] }),
          { id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv6Prefixes: ['fd00:1::/64'] },
        ],
      },
      /interfaces\/1\/ipv6Prefixes\/0 is the same prefix as \/interfaces\/0/,
    ],
    [
      'with one MAC address twice',
      { interfaces: [...nic({}), { id: 'int-b', macAddress: '02:24:19:00:00:ee' }] },
      /interfaces\/1\/macAddress is the same MAC address as \/interfaces\/0/,
    ],
    [
      'with two keys of one user',
      {
        publicKeys: [
          { user: 'usr-a', key: 'ssh-rsa AAAA' },
          { user: 'usr-a', key: 'ssh-rsa BBBB' },
        ],
      },
      /publicKeys\/1\/user is the same user/,
    ],
    [
      'with a further key on two lines',
      { publicKeys: [{ user: 'usr-a', key: 'ssh-rsa AAAA', moreKeys: ['ssh-rsa AAAA\nssh-rsa BBBB'] }] },
      /publicKeys\/0\/moreKeys\/0/,
    ],
    [
      'with a key on two lines',
      { publicKeys: [{ user: 'usr-a', key: 'ssh-rsa AAAA\nssh-rsa BBBB' }] },
      /publicKeys\/0\/key/,
    ],
    ["with a group's name on two lines", { serverGroups: [{ id: 'grp-a', name: 'a\nb' }] }, /serverGroups\/0\/name/],
    [
      'with an option of another value',
      { options: { httpTokens: 'maybe' } },
      /httpTokens must be one of optional, required/,
    ],
    ['with a digest of another form', { userData: { size: 1, sha256: 'x' } }, /userData\/sha256/],
    ['with a seal that is no time', { sealedAt: true }, /^\/sealedAt must be a time such as/],
    ['with a seal at a time without a zone', { sealedAt: '2026-11-20T15:04:05' }, /^\/sealedAt/],
    ['with a seal in a thirteenth month', { sealedAt: '2026-13-20T15:04:05Z' }, /^\/sealedAt/],
    [
      'with a list in the place of an object, as some encoders write an empty one',
      { blockDevices: [] },
      /^\/blockDevices/,
    ],
    ['with a list where a text belongs', { fqdn: ['a.example.com'] }, /^\/fqdn must be a domain name/],
    ['with an object where a list belongs', { interfaces: { 0: nic({})[0] } }, /^\/interfaces must be array/],
    [
      'with 257 keys of 9 users',
      { publicKeys: many(9, (i) => ({ user: `usr-${i}`, ...keysOfUser(i < 8 ? 32 : 1) })) },
      /^\/publicKeys has 257 keys, more than the limit of 256$/,
    ],
    [
      'with a tag whose key has 129 characters',
      { tags: { ['é'.repeat(129)]: '' } },
      /^\/tags has a name that is too long, or that has half of a surrogate pair$/,
    ],
    [
      'with a tag whose key is endless',
      { tags: { ['x'.repeat(100_000)]: 'x'.repeat(257) } },
      /^\/tags must be a text of at most 256 characters, .*\n\/tags has a name that is too long, /,
    ],
    [
      'with a tag whose value has 257 characters',
      { tags: { a: '😀'.repeat(257) } },
      /^\/tags\/a must be a text of at most 256 characters, without half of a surrogate pair$/,
    ],
    [
      'with 257 block devices, some of them unknown',
      { blockDevices: Object.fromEntries(many(257, (i) => [i < 9 ? `nvme${i}` : `ebs${i}`, 'sda'])) },
      /^\/blockDevices must not have more than 256/,
    ],
    ['on one hypervisor twice', { hypervisors: ['a', 'a'] }, /hypervisors\/1 is the same hypervisor/],
  ])('%s', (_what, change, fault) => expect(faultsOf(anInstance(change)).join('\n')).toMatch(fault))

  test.each<[string, Record<string, unknown>, RegExp]>([
    ['with a gateway that is no address', { ipv4Gateway: '10.0.0' }, /ipv4Gateway/],
    ['with a gateway of the other family', { ipv6Gateway: '10.0.0.1' }, /ipv6Gateway/],
    ['with a nameserver by name', { nameservers: ['dns.example'] }, /nameservers\/0/],
    [
      'with a MAC address in capitals',
      { macAddress: '02:24:19:00:00:EE' },
      /macAddress must be a MAC address in lower case/,
    ],
    [
      'with an IPv4 address with leading zeros',
      { ipv4Addresses: ['10.0.0.02'] },
      /ipv4Addresses\/0 must be an IPv4 address/,
    ],
    ['with a prefix length of 0', { ipv4Addresses: ['10.0.0.2/0'] }, /ipv4Addresses\/0/],
    ['with a prefix length that is a fraction', { ipv4Addresses: ['10.0.0.2/1.5'] }, /ipv4Addresses\/0/],
    ['with a prefix length that is no number', { ipv4Addresses: ['10.0.0.2/NaN'] }, /ipv4Addresses\/0/],
    ['with a prefix length after an invalid address', { ipv6Addresses: ['10.0.0.2/64'] }, /ipv6Addresses\/0/],
    ['with a prefix length of IPv6 that is too long', { ipv6Addresses: ['fd00::2/129'] }, /ipv6Addresses\/0/],
    [
      'with a cloud IP that is no IPv4 address',
      { cloudIps: [{ id: 'cip-a', publicIpv4: '10.0.0', fqdn: 'a.b' }] },
      /publicIpv4 must be an IPv4 address/,
    ],
    [
      'with a cloud IP with a longer form of an IPv6 address',
      { cloudIps: [{ id: 'cip-a', publicIpv4: '10.0.0.1', publicIpv6: 'fd00:0::1', fqdn: 'a.b' }] },
      /publicIpv6 must be an IPv6 address/,
    ],
    [
      'with a link-local IPv4 address',
      { ipv4Addresses: ['10.0.0.2/30', '169.254.7.7/16'] },
      /^\/interfaces\/0\/ipv4Addresses\/1 is unspecified, link-local, multicast or broadcast, which cannot identify a guest$/,
    ],
    [
      'with a link-local IPv6 address',
      { ipv6Addresses: ['fe80::2/64'] },
      /^\/interfaces\/0\/ipv6Addresses\/0 is unspecified, link-local/,
    ],
    ['with the unspecified address', { ipv6Addresses: ['::'] }, /ipv6Addresses\/0 is unspecified/],
    [
      'with one cloud IP twice',
      { cloudIps: many(2, (i) => ({ id: `cip-${i}`, publicIpv4: '10.0.0.1', fqdn: 'a.b' })) },
      /cloudIps\/1\/publicIpv4 is the same cloud IP/,
    ],
    ['with a prefix length that is too long', { ipv4Addresses: ['10.0.0.2/33'] }, /ipv4Addresses\/0/],
    ['with a prefix length with a leading zero', { ipv4Addresses: ['10.0.0.2/08'] }, /ipv4Addresses\/0/],
    [
      'with an IPv6 address in a longer form',
      { ipv6Addresses: ['fd00:0::2'] },
      /ipv6Addresses\/0 must be an IPv6 address in its shortest/,
    ],
    ['with an IPv4 address in the form of IPv6', { ipv6Addresses: ['::ffff:10.0.0.2'] }, /ipv6Addresses\/0/],
    ['with an IPv6 address with a zone', { ipv6Addresses: ['fe80::2%eth0'] }, /ipv6Addresses\/0/],
    [
      'with an IPv6 prefix without a length',
      { ipv6Prefixes: ['2a02:1348:178:1::'] },
      /ipv6Prefixes\/0 must be an IPv6 network of global/,
    ],
    [
      'with one address twice',
      { ipv4Addresses: ['10.0.0.2/30', '10.0.0.2/24'] },
      /ipv4Addresses\/1 is the same address/,
    ],
  ])('%s', (_what, change, fault) => {
    expect(faultsOf(anInstance({ interfaces: nic(change) })).join('\n')).toMatch(fault)
  })
})

test('a prefix length may be 1 to 32, of IPv6 1 to 128', () => {
  const addresses = {
    ipv4Addresses: ['10.0.0.2/1', '10.0.0.3/32', '10.0.0.4'],
    ipv6Addresses: ['fd00::2/1', 'fd00::3/128', 'fd00::4'],
  }
  expect(parsed(anInstance({ interfaces: nic(addresses) })).interfaces[0]).toMatchObject(addresses)
})

test('a field that the record lacks, and that has no default, is absent', () => {
  const instance = parsed(anInstance({ userData: undefined }))
  expect([Object.hasOwn(instance, 'userData'), Object.hasOwn(instance, 'sealedAt')]).toEqual([false, false])
})

test('an unknown block device counts, and is left out', () => {
  const { blockDevices } = parsed(
    anInstance({ blockDevices: { nvme0: 'x', ...Object.fromEntries(many(255, (i) => [`ebs${i}`, 'sda'])) } }),
  )
  expect([Object.keys(blockDevices).length, 'nvme0' in blockDevices]).toEqual([255, false])
})

test('the seal of a document is its time, even if the rest of the document is faulty', () => {
  for (const time of ['2026-11-20T15:04:05Z', '2026-11-20T15:04:05.12345678901234Z', '2026-12-31T23:59:59-23:59'])
    expect(sealOf({ sealedAt: time })).toBe(time)
  for (const none of [
    undefined,
    null,
    'x',
    {},
    { sealedAt: 1 },
    { sealedAt: '2026-11-20' },
    { sealedAt: ['2026-11-20T15:04:05Z'] },
    { sealedAt: '2026-11-20T15:04:05.123456789012345Z' },
  ])
    expect(sealOf(none)).toBeUndefined()
})

test('a tag may have the name of a property of every object', () => {
  const tags = Object.fromEntries(
    [...Object.getOwnPropertyNames(Object.prototype), 'prototype'].map((name) => [name, 'x']),
  )
  const instance = parsed(anInstance({ tags }))
  expect(Object.entries(instance.tags)).toEqual(Object.entries(tags))
  expect(Object.entries(parsed(JSON.parse(JSON.stringify(instance)) as Record<string, unknown>).tags)).toEqual(
    Object.entries(tags),
  )
  expect(({} as Record<string, unknown>)['x']).toBeUndefined()
})

test('an interface may own nested prefixes and addresses inside of its prefixes', () => {
  expect(
    faultsOf(
      anInstance({
        interfaces: nic({ ipv6Addresses: ['fd00:1::2/64'], ipv6Prefixes: ['fd00:1::/48', 'fd00:1::/64'] }),
      }),
    ),
  ).toEqual([])
})

test('a record kept by an older daemon gets the defaults of newer fields', () => {
  const kept = JSON.parse(JSON.stringify(parsed(anInstance()))) as {
    interfaces: { ipv6Prefixes?: string[]; nameservers?: string[] }[]
    events?: unknown[]
  }
  delete kept.interfaces[0]!.ipv6Prefixes
  delete kept.interfaces[0]!.nameservers
  delete kept.events
  expect(parse(kept)).toEqual({ ok: true, value: parsed(anInstance()) })
})

describe('a record is bounded', () => {
  test('in every list, map and text of its schema', () => {
    const unbounded: string[] = []
    const visit = (schema: Record<string, unknown>, path: string) => {
      const {
        type,
        pattern = '',
        format = '',
        maxLength,
        maxItems,
        maxProperties,
        items,
        properties,
        patternProperties,
      } = schema as { type?: string; pattern?: string; format?: string } & Record<string, unknown>
      const isOpen =
        /[*+]|\{\d+,\}/.test(pattern.replaceAll(/\[[^\]]*\]|\\./g, 'c')) ||
        (pattern === '' && !format.startsWith('imds-ip'))
      if (type === 'string' && isOpen && maxLength === undefined) unbounded.push(path)
      if (type === 'array' && maxItems === undefined) unbounded.push(path)
      if (patternProperties !== undefined && maxProperties === undefined) unbounded.push(path)
      for (const [name, field] of Object.entries({
        ...(properties as object),
        ...(patternProperties as object),
        ...(items !== undefined && { '[]': items }),
      }))
        visit(field as Record<string, unknown>, `${path}/${name}`)
    }
    visit(InstanceSchema as unknown as Record<string, unknown>, '')
    expect(unbounded).toEqual([])
  })

  test('and may be as large as each bound says', () => {
    const largest = {
      tags: Object.fromEntries(many(50, (i) => [`${i}${'😀'.repeat(126)}`, 'é'.repeat(256)])),
      blockDevices: Object.fromEntries(many(256, (i) => [`ebs${i}`, 'sda'])),
    }
    expect(parsed(anInstance(largest))).toMatchObject(largest)
  })

  test('in its size as JSON', () => {
    const sized = (bytes: number) => {
      const record = anInstance({ later: '' })
      return { ...record, later: 'é'.repeat((bytes - Buffer.byteLength(JSON.stringify(record))) / 2) }
    }
    const even = Buffer.byteLength(JSON.stringify(anInstance({ later: '' }))) % 2
    expect(sizeFaults(sized(MAX_RECORD_BYTES - even))).toEqual([])
    expect(sizeFaults(sized(MAX_RECORD_BYTES - even + 2))).toEqual([
      { path: '', message: `is ${MAX_RECORD_BYTES - even + 2} bytes as JSON, more than the limit of 262144` },
    ])
    const loop: Record<string, unknown> = anInstance()
    loop['later'] = loop
    expect(sizeFaults(loop)).toEqual([{ path: '', message: 'cannot be written as JSON' }])
  })

  test('and is checked only up to its limits, however much it holds', () => {
    let reads = 0
    const counted = <T extends object>(target: T) =>
      new Proxy(target, {
        get: (from, name) => {
          reads += 1
          return Reflect.get(from, name) as unknown
        },
      })
    expect(faultsOf(anInstance({ tags: counted(tags(100_000)) }))).toEqual([
      '/tags must not have more than 50 properties',
    ])
    expect(faultsOf(anInstance({ serverGroups: counted(many(100_000, () => null)) }))).toContain(
      '/serverGroups must not have more than 256 items',
    )
    parsed(anInstance({ later: counted(tags(100_000)) }))
    expect(reads).toBeLessThan(1000)
  })
})

test('a text that breaks two rules of one sentence gets that sentence once', () => {
  const parsed = parse({ ...anInstance(), fqdn: `${'a'.repeat(300)}.example.com` })
  expect(parsed.ok ? [] : parsed.faults.map(({ path }) => path)).toEqual(['/fqdn'])
})
