/** A1, A2, B and C of the contract as a table: for each category, the exact bytes for one full record. */
import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { CATEGORIES } from '../../src/metadata/categories.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import { aGuestServer } from '../support/fixtures/guest-server.ts'
import { aFullInstance, anInstance } from '../support/fixtures/instance.ts'

const MAC0 = 'network/interfaces/macs/02:24:19:00:00:ee'
const MAC1 = 'network/interfaces/macs/02:24:19:00:00:0a'
const KEY0 = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example\n'
const KEY1 = 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 bob\n'
const PROVIDER = { domain: 'example.com', partition: 'example' }

/** Contract number, path below meta-data/, first version, and the bytes in `latest`. */
const LEAVES: [string, string, string, string][] = [
  ['C3', 'ami-id', '1.0', 'img-4ltjf'],
  ['C3', 'ami-launch-index', '1.0', '0'],
  ['C3', 'ami-manifest-path', '1.0', '(unknown)'],
  ['C3', 'block-device-mapping/ami', '2007-12-15', '/dev/sda1'],
  ['C3', 'block-device-mapping/ebs1', '2007-12-15', 'sdb'],
  ['C3', 'block-device-mapping/ebs2', '2007-12-15', 'sdc'],
  ['C3', 'block-device-mapping/ebs10', '2007-12-15', 'sdk'],
  ['C3', 'block-device-mapping/ephemeral0', '2007-12-15', 'sdd'],
  ['C3', 'block-device-mapping/root', '2007-12-15', '/dev/sda1'],
  ['C3', 'block-device-mapping/swap', '2007-12-15', 'sda3'],
  ['C3', 'events/maintenance/history', '2018-08-17', '[]'],
  ['C3', 'events/maintenance/scheduled', '2018-08-17', '[]'],
  ['C1', 'hostname', '1.0', 'srv-abcde.gb1.example.com'],
  ['C3', 'instance-action', '2008-09-01', 'none'],
  ['C1', 'instance-id', '1.0', 'srv-abcde'],
  ['C3', 'instance-life-cycle', '2019-10-01', 'on-demand'],
  ['C1', 'instance-type', '2007-08-29', '2gb.ssd'],
  ['C3', 'ipv6', '2021-01-03', '2a02:1348:178::2'],
  ['C1', 'local-hostname', '2007-01-19', 'srv-abcde.gb1.example.com'],
  ['C1', 'local-ipv4', '1.0', '10.0.0.2'],
  ['C3', 'mac', '2011-01-01', '02:24:19:00:00:ee'],
  ['C4', `${MAC0}/device-number`, '2011-01-01', '0'],
  ['C4', `${MAC1}/device-number`, '2011-01-01', '1'],
  ['C4', `${MAC0}/interface-id`, '2011-01-01', 'int-ds42k'],
  ['C4', `${MAC0}/ipv4-associations/198.51.100.7`, '2011-01-01', '10.0.0.2'],
  ['C4', `${MAC0}/ipv4-associations/198.51.100.8`, '2011-01-01', '10.0.0.2'],
  ['C4', `${MAC0}/ipv6s`, '2016-06-30', '2a02:1348:178::2\n2a02:1348:178::3'],
  ['C4', `${MAC0}/local-hostname`, '2011-01-01', 'srv-abcde.gb1.example.com'],
  ['C4', `${MAC0}/local-ipv4s`, '2011-01-01', '10.0.0.2\n10.0.9.2'],
  ['C4', `${MAC1}/local-ipv4s`, '2011-01-01', '10.1.0.2'],
  ['C4', `${MAC0}/mac`, '2011-01-01', '02:24:19:00:00:ee'],
  ['C4', `${MAC0}/owner-id`, '2011-01-01', 'acc-xyz12'],
  ['C4', `${MAC0}/public-hostname`, '2011-01-01', 'cip-198-51-100-7.gb1.example.com'],
  ['C4', `${MAC0}/public-ipv4s`, '2011-01-01', '198.51.100.7\n198.51.100.8'],
  ['C4', `${MAC0}/public-ipv6s`, '2021-01-03', '2a02:1348:ffff::7'],
  ['C4', `${MAC0}/ipv6-prefix`, '2021-07-15', '2a02:1348:178:1::/64'],
  ['C4', `${MAC0}/security-group-ids`, '2011-01-01', 'grp-sda44\ngrp-web01'],
  ['C4', `${MAC0}/security-groups`, '2011-01-01', 'default\nweb servers'],
  ['C4', `${MAC0}/subnet-id`, '2011-01-01', 'subnet-ds42k'],
  ['C4', `${MAC0}/subnet-ipv4-cidr-block`, '2011-01-01', '10.0.0.0/30'],
  ['C4', `${MAC0}/subnet-ipv6-cidr-blocks`, '2016-06-30', '2a02:1348:178::/64'],
  ['C4', `${MAC0}/vpc-id`, '2011-01-01', 'vpc-xyz12'],
  ['C3', 'placement/availability-zone', '2008-02-01', 'gb1-a'],
  ['C3', 'placement/availability-zone-id', '2019-10-01', 'zon-remk1'],
  ['C3', 'placement/region', '2020-10-27', 'gb1'], // EC2's date is 2020-08-24, which is not a version (A2)
  ['C3', 'profile', '1.0', 'default-hvm'],
  ['C3', 'public-hostname', '2007-01-19', 'cip-198-51-100-7.gb1.example.com'],
  ['C1', 'public-ipv4', '2007-01-19', '198.51.100.7'],
  ['C3', 'public-ipv6', '2021-01-03', '2a02:1348:ffff::7'],
  ['C2', 'public-keys/0/openssh-key', '1.0', KEY0],
  ['C2', 'public-keys/1/openssh-key', '1.0', KEY1],
  ['C3', 'reservation-id', '1.0', 'r-abcde'],
  ['C3', 'security-groups', '1.0', 'default\nweb servers'],
  ['C3', 'services/domain', '2014-02-25', 'example.com'],
  ['C3', 'services/partition', '2015-10-20', 'example'],
  ['C5', 'tags/instance/Name', '2021-03-23', 'web-1'],
  ['C5', 'tags/instance/a:b@c', '2021-03-23', Buffer.from('é').toString('latin1')],
  ['C5', 'tags/instance/empty', '2021-03-23', ''],
]

/** Contract number, path, and the exact listing in `latest`. */
const LISTINGS: [string, string, string][] = [
  ['A1', '', VERSIONS.join('\n')],
  ['B1', 'latest/', 'dynamic\nmeta-data\nuser-data'],
  [
    'B1',
    'latest/meta-data/',
    [
      'ami-id',
      'ami-launch-index',
      'ami-manifest-path',
      'block-device-mapping/',
      'events/',
      'hostname',
      'instance-action',
      'instance-id',
      'instance-life-cycle',
      'instance-type',
      'ipv6',
      'local-hostname',
      'local-ipv4',
      'mac',
      'network/',
      'placement/',
      'profile',
      'public-hostname',
      'public-ipv4',
      'public-ipv6',
      'public-keys/',
      'reservation-id',
      'security-groups',
      'services/',
      'tags/',
    ].join('\n'),
  ],
  ['C3', 'latest/meta-data/block-device-mapping/', 'ami\nebs1\nebs2\nebs10\nephemeral0\nroot\nswap'],
  ['C3', 'latest/meta-data/events/', 'maintenance/'],
  ['C3', 'latest/meta-data/events/maintenance/', 'history\nscheduled'],
  ['C4', 'latest/meta-data/network/', 'interfaces/'],
  ['C4', 'latest/meta-data/network/interfaces/', 'macs/'],
  ['C4', 'latest/meta-data/network/interfaces/macs/', '02:24:19:00:00:ee/\n02:24:19:00:00:0a/'],
  [
    'C4',
    `latest/meta-data/${MAC0}/`,
    [
      'device-number',
      'interface-id',
      'ipv4-associations/',
      'ipv6-prefix',
      'ipv6s',
      'local-hostname',
      'local-ipv4s',
      'mac',
      'owner-id',
      'public-hostname',
      'public-ipv4s',
      'public-ipv6s',
      'security-group-ids',
      'security-groups',
      'subnet-id',
      'subnet-ipv4-cidr-block',
      'subnet-ipv6-cidr-blocks',
      'vpc-id',
    ].join('\n'),
  ],
  [
    'C4',
    `latest/meta-data/${MAC1}/`,
    [
      'device-number',
      'interface-id',
      'local-hostname',
      'local-ipv4s',
      'mac',
      'owner-id',
      'security-group-ids',
      'security-groups',
      'subnet-id',
      'subnet-ipv4-cidr-block',
      'vpc-id',
    ].join('\n'),
  ],
  ['C4', `latest/meta-data/${MAC0}/ipv4-associations/`, '198.51.100.7\n198.51.100.8'],
  ['C3', 'latest/meta-data/placement/', 'availability-zone\navailability-zone-id\nregion'],
  ['C2', 'latest/meta-data/public-keys/', '0=usr-xl7gd\n1=usr-bob00'],
  ['C2', 'latest/meta-data/public-keys/0/', 'openssh-key'],
  ['C3', 'latest/meta-data/services/', 'domain\npartition'],
  ['C5', 'latest/meta-data/tags/', 'instance/'],
  ['C5', 'latest/meta-data/tags/instance/', 'Name\na:b@c\nempty'],
]

const guest = aGuestServer({ provider: PROVIDER })
guest.put(aFullInstance(), Buffer.from('#!/bin/sh\n'))
await guest.ask('/latest/') // builds the tree outside of the tests, so that a mutation run checks it with all of them

test('C2: a path of digits is the position of a key, whatever the ids of users are', async () => {
  const other = aGuestServer()
  const key = (name: string) => `ssh-ed25519 ${name}\n`
  other.put(
    aFullInstance({
      publicKeys: ['1', '0', '7', 'usr-a'].map((user, i) => ({ user, key: `ssh-ed25519 AAA${i}` })),
    }),
  )
  expect((await other.ask('/latest/meta-data/public-keys/')).text).toBe('0=1\n1=0\n2=7\n3=usr-a')
  for (const [path, name] of [
    ['0', 'AAA0'],
    ['1', 'AAA1'],
    ['2', 'AAA2'],
    ['3', 'AAA3'],
    ['usr-a', 'AAA3'],
  ] as const) {
    expect([path, (await other.ask(`/latest/meta-data/public-keys/${path}/openssh-key`)).text]).toEqual([
      path,
      key(name),
    ])
  }
  expect((await other.ask('/latest/meta-data/public-keys/7/openssh-key')).status).toBe(404)
})

describe('every category', () => {
  test.each(LEAVES)(
    '%s: %s exists from its version on, with exactly these bytes',
    async (_number, path, since, value) => {
      for (const [position, version] of VERSIONS.entries()) {
        const { status, headers, text } = await guest.ask(`/${version}/meta-data/${path}`)
        const visible = position >= VERSIONS.indexOf(since)
        expect([version, status]).toEqual([version, visible ? 200 : 404])
        const above = path.lastIndexOf('/') + 1
        const listing = await guest.ask(`/${version}/meta-data/${path.slice(0, above)}`)
        const names = listing.status === 200 ? listing.text.split('\n') : []
        expect([version, names.some((name) => name === path.slice(above) || name === `${path.slice(above)}/`)]).toEqual(
          [version, visible],
        )
        if (version !== 'latest') continue
        expect(text).toBe(value)
        expect(headers['content-type']).toBe('text/plain')
        expect(headers['content-length']).toBe(String(value.length))
      }
    },
  )

  test('of the catalogue has a row here', () => {
    const rows = LEAVES.map(([, path]) => `meta-data/${path}`)
    const uncovered = CATEGORIES.filter(({ pattern }) => !rows.some((path) => matches(pattern, path)))
    expect(uncovered.map(({ pattern }) => pattern)).toEqual([])
  })

  test("that EC2 documents and this cloud can provide is in the catalogue, with EC2's date", () => {
    const documented = JSON.parse(readFileSync(new URL('ec2-categories.json', import.meta.url), 'utf8')) as [
      string,
      string | null,
      string,
    ][]
    const ours = new Map(CATEGORIES.map(({ pattern, since }) => [pattern, since]))
    const missing = documented.filter(([path, , applies]) => applies === 'yes' && !ours.has(path)).map(([path]) => path)
    expect(missing).toEqual([])
    const otherDate = documented
      .filter(([path, since]) => since !== null && ours.has(path) && ours.get(path) !== since)
      .map(([path]) => path)
    // EC2's date is older than the tree that it is in
    expect(otherDate).toEqual(['meta-data/network/interfaces/macs/{mac}/local-hostname'])
    const invented = [...ours.keys()].filter((pattern) => !documented.some(([path]) => path === pattern))
    // EC2 has no public IPv6 addresses: those of its interfaces are public
    expect(invented).toEqual(['meta-data/network/interfaces/macs/{mac}/public-ipv6s', 'meta-data/public-ipv6'])
  })

  test('C6: that exists only on AWS is a 404', async () => {
    for (const path of [
      'iam/',
      'iam/info',
      'iam/security-credentials/',
      'spot/instance-action',
      'spot/termination-time',
      'events/recommendations/rebalance',
      'autoscaling/target-lifecycle-state',
      'managed-ssh-keys/active-keys/root/',
      'product-codes',
      'kernel-id',
      'identity-credentials/ec2/info',
    ]) {
      expect([path, (await guest.ask(`/latest/meta-data/${path}`)).status]).toEqual([path, 404])
    }
  })
})

describe('every listing', () => {
  test.each(LISTINGS)('%s: /%s, with and without a trailing slash', async (_number, path, listing) => {
    for (const url of new Set([`/${path}`, `/${path.replace(/\/$/, '')}`, `/${path}/`])) {
      const { status, headers, text } = await guest.ask(url)
      expect([url, status, text]).toEqual([url, 200, listing])
      expect(headers['content-type']).toBe('text/plain')
      expect(headers['content-length']).toBe(String(listing.length))
    }
  })

  test('A2: of an older version shows only what that version has', async () => {
    expect((await guest.ask('/2009-04-04/meta-data/')).text).toBe(
      [
        'ami-id',
        'ami-launch-index',
        'ami-manifest-path',
        'block-device-mapping/',
        'hostname',
        'instance-action',
        'instance-id',
        'instance-type',
        'local-hostname',
        'local-ipv4',
        'placement/',
        'profile',
        'public-hostname',
        'public-ipv4',
        'public-keys/',
        'reservation-id',
        'security-groups',
      ].join('\n'),
    )
    expect((await guest.ask('/2009-04-04/meta-data/placement/')).text).toBe('availability-zone')
    expect((await guest.ask('/1.0/meta-data/placement/')).status).toBe(404)
  })
})

test('A2: before 2018-09-24 an interface has only its first address', async () => {
  expect((await guest.ask(`/2018-08-17/meta-data/${MAC0}/local-ipv4s`)).text).toBe('10.0.0.2')
  expect((await guest.ask(`/2018-08-17/meta-data/${MAC0}/ipv6s`)).text).toBe('2a02:1348:178::2')
  expect((await guest.ask(`/2018-09-24/meta-data/${MAC0}/local-ipv4s`)).text).toBe('10.0.0.2\n10.0.9.2')
})

test('C2: each key of a user is listed with a name of its own, and the path of the user has all of them', async () => {
  const other = aGuestServer()
  const key = (name: string) => `ssh-ed25519 ${name}`
  const keys = [
    { user: 'usr-a', key: key('AAA0'), moreKeys: [key('AAA1 a b'), key('AAA2')] },
    { user: 'usr-b', key: key('AAA3'), moreKeys: [] },
    { user: '9', key: key('AAA4'), moreKeys: [key('AAA5')] },
  ]
  other.put(aFullInstance({ publicKeys: keys }))
  const get = (path: string) => other.ask(`/latest/meta-data/public-keys/${path}`)
  expect((await get('')).text).toBe('0=usr-a\n1=usr-a:2\n2=usr-a:3\n3=usr-b\n4=9\n5=9:2')
  for (const [i, name] of ['AAA0', 'AAA1 a b', 'AAA2', 'AAA3', 'AAA4', 'AAA5'].entries())
    expect((await get(`${i}/openssh-key`)).text).toBe(`${key(name)}\n`)
  const ofUser = [key('AAA0'), key('AAA1 a b'), key('AAA2')]
  expect((await get('usr-a/openssh-key')).text).toBe(ofUser.map((line) => `${line}\n`).join(''))
  for (const path of ['usr-a', 'usr-a/']) expect((await get(path)).text).toBe('openssh-key')
  expect((await get('usr-b/openssh-key')).text).toBe(`${key('AAA3')}\n`)
  for (const path of ['6/openssh-key', '9/openssh-key', 'usr-a:2/openssh-key'])
    expect((await get(path)).status).toBe(404)
})

describe("C2: a key also answers under its user's id, unlisted", () => {
  test.each([
    ['usr-xl7gd', 'openssh-key'],
    ['usr-xl7gd/', 'openssh-key'],
    ['usr-xl7gd/openssh-key', KEY0],
    ['usr-bob00/openssh-key', KEY1],
    ['0', 'openssh-key'],
    ['1/', 'openssh-key'],
  ])('public-keys/%s', async (path, body) => {
    expect(await guest.ask(`/latest/meta-data/public-keys/${path}`)).toMatchObject({ status: 200, text: body })
  })
  test.each(['2/openssh-key', 'usr-other/openssh-key', '00/openssh-key', '0=usr-xl7gd'])(
    'but not public-keys/%s',
    async (path) => expect((await guest.ask(`/latest/meta-data/public-keys/${path}`)).status).toBe(404),
  )
})

describe('B3: what does not apply is neither listed nor answered', () => {
  const LACKING: [string, string, Record<string, unknown>, string[]][] = [
    ['C2', 'no key', { publicKeys: [] }, ['public-keys', 'public-keys/0/openssh-key']],
    [
      'C3',
      'no cloud IP',
      { interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'] }] },
      [
        'public-ipv4',
        'public-ipv6',
        'public-hostname',
        `${MAC0}/public-ipv4s`,
        `${MAC0}/public-ipv6s`,
        `${MAC0}/ipv6-prefix`,
        `${MAC0}/public-hostname`,
        `${MAC0}/ipv4-associations`,
      ],
    ],
    [
      'C3',
      'no server group',
      { serverGroups: [] },
      ['security-groups', `${MAC0}/security-groups`, `${MAC0}/security-group-ids`],
    ],
    ['C3', 'no block device', {}, ['block-device-mapping', 'block-device-mapping/root']],
    ['C3', 'no provider facts', {}, ['services', 'services/domain', 'services/partition']],
    [
      'C4',
      'addresses by SLAAC',
      {
        interfaces: [
          {
            id: 'int-a',
            macAddress: '02:24:19:00:00:ee',
            ipv4Addresses: ['10.0.0.2/30'],
            ipv6Addresses: ['fd00::2/64'],
          },
        ],
      },
      [`${MAC0}/ipv6s`, `${MAC0}/subnet-ipv6-cidr-blocks`],
    ],
    [
      'C4',
      'an interface without a prefix length',
      { interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2'] }] },
      ['network', `${MAC0}/mac`],
    ],
    [
      'C4',
      'one interface of two without a prefix length',
      {
        interfaces: [
          { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'] },
          { id: 'int-b', macAddress: '02:24:19:00:00:0a', ipv4Addresses: ['10.1.0.2'] },
        ],
      },
      [MAC1, `${MAC1}/mac`],
    ],
    [
      'C4',
      'the first interface of two without a prefix length',
      {
        interfaces: [
          { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2'] },
          { id: 'int-b', macAddress: '02:24:19:00:00:0a', ipv4Addresses: ['10.1.0.2/24'] },
        ],
      },
      ['network', `${MAC0}/mac`, `${MAC1}/mac`],
    ],
    [
      'C4',
      'an interface without IPv4',
      {
        interfaces: [
          { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'] },
          {
            id: 'int-b',
            macAddress: '02:24:19:00:00:0a',
            ipv6Addresses: ['fd00::2/64'],
            cloudIps: [{ id: 'cip-a', publicIpv4: '198.51.100.7', fqdn: 'a.example.com' }],
          },
        ],
      },
      ['local-ipv4s', 'subnet-ipv4-cidr-block', 'ipv4-associations'].map((name) => `${MAC1}/${name}`),
    ],
    [
      'C4',
      'an IPv6 address without a prefix length',
      {
        interfaces: [
          {
            id: 'int-a',
            macAddress: '02:24:19:00:00:ee',
            ipv4Addresses: ['10.0.0.2/30'],
            ipv6Addresses: ['fd00::2'],
            dhcpv6: true,
          },
        ],
      },
      [`${MAC0}/subnet-ipv6-cidr-blocks`],
    ],
    ['C5', 'tags not enabled', { tags: { Name: 'x' } }, ['tags', 'tags/instance', 'tags/instance/Name']],
    [
      'C5',
      'no tag that a path can name',
      { tags: { 'a b': 'x', '5=x': 'y' }, options: { instanceMetadataTags: 'enabled' } },
      ['tags', 'tags/instance', 'tags/instance/a b', 'tags/instance/5=x'],
    ],
    [
      'H3',
      'no signatures without a key',
      {},
      ['pkcs7', 'rsa2048', 'signature'].map((leaf) => `../dynamic/instance-identity/${leaf}`),
    ],
  ]
  test.each(LACKING)('%s: %s', async (_number, _what, change, paths) => {
    const bare = aGuestServer()
    bare.put(anInstance(change))
    for (const path of paths) {
      const full = new URL(`http://x/latest/meta-data/${path}`).pathname
      expect([full, (await bare.ask(full)).status]).toEqual([full, 404])
      const slash = full.lastIndexOf('/')
      const listing = await bare.ask(full.slice(0, slash + 1))
      const names = listing.status === 200 ? listing.text.split('\n').map((name) => name.replace(/\/$/, '')) : []
      expect(names).not.toContain(decodeURIComponent(full.slice(slash + 1)))
    }
  })
})

test('C4: interfaces are shown each by itself: an IPv6-only one, and one after one that is left out', async () => {
  const several = aGuestServer()
  several.put(
    anInstance({
      interfaces: [
        { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'] },
        { id: 'int-b', macAddress: '02:24:19:00:00:0b', ipv4Addresses: ['10.1.0.2'] },
        { id: 'int-c', macAddress: '02:24:19:00:00:0a', ipv6Addresses: ['fd00::2/64'], dhcpv6: true },
      ],
    }),
  )
  const text = async (path: string) => (await several.ask(`/latest/meta-data/${path}`)).text
  expect(await text('network/interfaces/macs/')).toBe('02:24:19:00:00:ee/\n02:24:19:00:00:0a/')
  expect(await text(`${MAC0}/local-ipv4s`)).toBe('10.0.0.2')
  expect((await text(`${MAC1}/`)).split('\n')).not.toContain('local-ipv4s')
  expect(await text(`${MAC1}/device-number`)).toBe('2')
  expect(await text(`${MAC1}/ipv6s`)).toBe('fd00::2')
  expect(await text(`${MAC1}/subnet-ipv6-cidr-blocks`)).toBe('fd00::/64')
})

test('C5: a tag may begin like a name that is not allowed', async () => {
  const tagged = aGuestServer()
  tagged.put(
    anInstance({
      tags: { _index: 'x', _index2: 'a', '.': 'x', '.hidden': 'b', '..': 'x', '..x': 'c' },
      options: { instanceMetadataTags: 'enabled' },
    }),
  )
  expect((await tagged.ask('/latest/meta-data/tags/instance/')).text).toBe('..x\n.hidden\n_index2')
})

test('C5: a tag may have the name of a property of every object, in each tree', async () => {
  const tagged = aGuestServer()
  const tags = Object.fromEntries(
    Object.getOwnPropertyNames(Object.prototype)
      .sort()
      .map((name) => [name, `of ${name}`]),
  )
  const options = { instanceMetadataTags: 'enabled', openstack: 'enabled' }
  tagged.put(anInstance({ tags, options }))
  const path = '/latest/meta-data/tags/instance'
  expect((await tagged.ask(path)).text).toBe(Object.keys(tags).join('\n'))
  expect(Object.entries(JSON.parse((await tagged.ask(`${path}?recursive=true`)).text) as object)).toEqual(
    Object.entries(tags),
  )
  const { meta } = JSON.parse((await tagged.ask('/openstack/latest/meta_data.json')).text) as { meta: object }
  expect(Object.entries(meta)).toEqual(Object.entries(tags))
  for (const revision of [2, 3]) {
    for (const [name, value] of Object.entries(tags)) expect((await tagged.ask(`${path}/${name}`)).text).toBe(value)
    tagged.put(anInstance({ revision, options })) // their grace period
  }
})

describe('C7: user-data', () => {
  const BYTES = Buffer.from([0x1f, 0x8b, 0x08, 0x00, 0xff, 0xfe, 0x0a, 0x0d, 0x0a, 0x00, 0xc3, 0x28])
  test('A8: is returned byte for byte, the same in every version and for Ignition', async () => {
    const binary = aGuestServer()
    binary.put(anInstance(), BYTES)
    for (const url of [
      ...VERSIONS.flatMap((version) => [`/${version}/user-data`, `/${version}/user-data/`]),
      '/openstack/latest/user_data',
      '/openstack/latest/user_data/',
    ]) {
      const { status, headers, body } = await binary.ask(url)
      expect([url, status, headers['content-type'], headers['content-length']]).toEqual([
        url,
        200,
        'application/octet-stream',
        '12',
      ])
      expect(body.equals(BYTES)).toBe(true)
    }
  })
  test('that is not set is a 404 and is not listed', async () => {
    const none = aGuestServer()
    none.put(anInstance())
    for (const url of ['/latest/user-data', '/openstack/latest/user_data'])
      expect((await none.ask(url)).status).toBe(404)
    expect((await none.ask('/latest/')).text).toBe('dynamic\nmeta-data')
  })
  test('that is set but empty is an empty 200', async () => {
    const empty = aGuestServer()
    empty.put(anInstance(), Buffer.alloc(0))
    expect(await empty.ask('/latest/user-data')).toMatchObject({ status: 200, text: '' })
    expect((await empty.ask('/latest/')).text).toBe('dynamic\nmeta-data\nuser-data')
  })
})

function matches(pattern: string, path: string): boolean {
  return new RegExp(`^${pattern.replace(/[.]/g, '\\.').replace(/\{[^}]+\}/g, '[^/]+')}$`).test(path)
}
