import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { parseRegion } from '../../../../src/imds-api/region/parse.ts'
import { ADA, aRegion, ONE } from '../../../support/fixtures/region.ts'

const faultsOf = async (change: object) => {
  const parsed = await parseRegion(JSON.stringify({ ...aRegion(), ...change }))
  return parsed.ok ? [] : parsed.faults
}
const databaseServer = {
  id: 'dbs-aaaaa',
  account: ONE,
  database_engine: 'mysql',
  database_version: '8.0',
  database_server_type: 'dbt-zzzzz',
  zone: 'gb1-a',
}
const aDatabaseServer = (change: object = {}) => ({ database_servers: [{ ...databaseServer, ...change }] })
const {
  accounts: [account, second],
  users: [user, mary],
  images: [image],
  address_pools: pools,
} = aRegion()
const anAccount = (change: object) => ({ accounts: [{ ...account, ...change }, second] })
const aUser = (change: object) => ({ users: [{ ...user, ...change }, mary] })
const somePools = (change: object) => ({ address_pools: { ...pools, ...change } })

test('the example and the region of the tests are right', async () => {
  const example = readFileSync(new URL('../../../../deploy/region.example.yaml', import.meta.url), 'utf8')
  expect(await parseRegion(example)).toMatchObject({ ok: true, value: { name: 'gb1' } })
  const whole = example.replaceAll(
    /^( *)# (?=(?:password_file|totp_secret_file|applications):| {2}- \{ id: app-)/gm,
    '$1',
  )
  expect(await parseRegion(whole)).toMatchObject({
    ok: true,
    value: {
      users: [{ password_file: 'ada.password', totp_secret_file: 'ada.totp' }],
      applications: [{ id: 'app-8xk2p' }],
    },
  })
  expect(await parseRegion(JSON.stringify(aRegion()))).toEqual({ ok: true, value: aRegion() })
})

test.each<[object, string]>([
  [{ colour: 'red' }, 'colour is not a known field'],
  ...['a..b', 'gb1.123', '123', `${'a'.repeat(64)}.com`, 'a.-b.com', 'A.com', 'a.com.', `${'a.'.repeat(100)}com`].map(
    (domain): [object, string] => [{ domain }, 'domain must be a domain name in lower case such as gb1.example.com'],
  ),
  [{ zones: [{ id: 'zon-aaaa1', handle: 'a', x: 1 }] }, 'zones.0.x is not a known field'],
  [aUser({ id: 'acc-aaaaa' }), 'users.0.id must be an id such as usr-demo1'],
  [{ zones: undefined }, 'zones is missing'],
  [{ zones: [] }, 'zones must not be empty'],
  [{ hypervisors: [{ name: 'a', zone: 'gb1-a', ram: 0 }] }, 'hypervisors.0.ram must be from 1 to 2147483647'],
  [anAccount({ access_tokens_limit: 0 }), 'accounts.0.access_tokens_limit must be from 1 to 2147483647'],
  [anAccount({ config_maps_limit: -1 }), 'accounts.0.config_maps_limit must be from 0 to 2147483647'],
  [
    { images: [image, { ...image, id: 'img-two02', handle: 'own', account: ONE, public: true }] },
    `images: img-two02 is public, and its account ${ONE} has no publish_images: true`,
  ],
  [
    anAccount({ telephone_number: '0207' }),
    'accounts.0.telephone_number must be a telephone number of E.164, such as +442079460000',
  ],
  [
    aUser({ ssh_key: `${user!.ssh_key!}\nb` }),
    `users: the ssh_key of ${user!.id} (line 2) must be one line of an authorized_keys file`,
  ],
  [aUser({ email_address: 'ada' }), `users: ${user!.id} has an email_address that is not one`],
  [{ zones: ['gb1-a', 'gb1-b'].map((handle) => ({ id: 'zon-aaaa1', handle })) }, 'zon-aaaa1 is given twice'],
  [{ zones: ['zon-aaaa1', 'zon-bbbb2'].map((id) => ({ id, handle: 'gb1-a' })) }, 'gb1-a is given twice'],
  [{ images: [image, { ...image, id: 'img-other' }] }, 'debian-12 is given twice'],
  [
    { users: [...aRegion().users, { id: 'usr-more3', name: 'x', email_address: 'ADA@example.com' }] },
    'ada@example.com is given twice',
  ],
  [somePools({ public_ipv4: ['203.0.113.0/24', '203.0.113.0/24'] }), '203.0.113.0/24 is given twice'],
  [
    somePools({ public_ipv4: ['203.0.113.0/24', '203.0.113.9-203.0.114.1'] }),
    'address_pools.public_ipv4: 203.0.113.0/24 and 203.0.113.9-203.0.114.1 overlap',
  ],
  [
    { hypervisors: [{ name: 'a', zone: 'gb1-z', ram: 1 }] },
    'hypervisors: a is in the zone gb1-z, which zones does not have',
  ],
  [anAccount({ owner: 'usr-zzzzz' }), `accounts: ${ONE} names usr-zzzzz, which users does not have`],
  [
    { accounts: [account, { ...aRegion().accounts[1], owner: ADA, status: 'suspended' }] },
    `accounts: ${ADA} owns ${ONE} and acc-two02, and a user owns one account that is not closed or deleted`,
  ],
  [anAccount({ collaborators: ['usr-zzzzz'] }), `accounts: ${ONE} names usr-zzzzz, which users does not have`],
  [
    { api_clients: [{ id: 'cli-aaaaa', account: 'acc-zzzzz', name: 'x' }] },
    'api_clients: cli-aaaaa belongs to acc-zzzzz, which accounts does not have',
  ],
  [
    { images: [{ ...image, account: 'acc-zzzzz' }] },
    'images: img-deb12 belongs to acc-zzzzz, which accounts does not have',
  ],
  [anAccount({ country_code: 'QQ' }), 'accounts.0.country_code must be a two-letter code of ISO 3166-1'],
  [
    anAccount({ vat_registration_number: 'DE 136 695 977' }),
    'accounts.0.vat_registration_number must be a valid EU VAT number',
  ],
  [aUser({ name: 'Ada\r\nBcc: x' }), 'users.0.name must be one line without control characters'],
  [
    { api_clients: [{ id: 'cli-aaaaa', account: ONE, name: 'x', permissions_group: 'all' }] },
    'api_clients.0.permissions_group must be "full" or "storage"',
  ],
  [
    anAccount({ verified_at: '2026-02-30T00:00:00Z' }),
    'accounts.0.verified_at must be a time such as 2026-11-20T15:04:05Z (RFC 3339)',
  ],
  [
    aDatabaseServer({ account: 'acc-zzzzz' }),
    'database_servers: dbs-aaaaa belongs to acc-zzzzz, which accounts does not have',
  ],
  [aDatabaseServer({ zone: 'gb1-z' }), 'database_servers: dbs-aaaaa is in the zone gb1-z, which zones does not have'],
  [aDatabaseServer(), 'database_servers: dbs-aaaaa has the type dbt-zzzzz, which database_server_types does not have'],
  [{ database_servers: [databaseServer, databaseServer] }, 'dbs-aaaaa is given twice'],
  [aDatabaseServer({ status: 'idle' }), 'database_servers.0.status must be "creating" or "active" or '],
  [{ server_types: [{ ...aRegion().server_types[0], status: 'idle' }] }, 'server_types.0.status must be "'],
  [aDatabaseServer({ maintenance_weekday: 7 }), 'database_servers.0.maintenance_weekday must be from 0 to 6'],
  [
    { database_server_types: [{ id: 'typ-aaaaa', name: 'x', disk_size: 1, ram: 1 }] },
    'database_server_types.0.id must be an id such as dbt-demo1',
  ],
  [
    { applications: [{ id: 'app-aaaaa', account: 'acc-zzzzz', name: 'x' }] },
    'applications: app-aaaaa belongs to acc-zzzzz, which accounts does not have',
  ],
  [{ applications: [1, 2].map(() => ({ id: 'app-aaaaa', account: ONE, name: 'x' })) }, 'app-aaaaa is given twice'],
  [
    aUser({ password_hash: 'secret' }),
    `users: ${ADA} has a password_hash that is not one of scrypt such as $scrypt$ln=15,r=8,p=3$SALT$KEY`,
  ],
  [aUser({ password_file: 'x' }), `users: ${ADA} has a password_file and a password_hash: keep one of them`],
  [somePools({ mac: ['x'] }), 'address_pools.mac: "x" is not a range of MAC addresses such as 02:24:19:00:00:00/24'],
  [somePools({ ipv6: { '10.240.0.0/16': '2001:db8:100::/49' } }), 'address_pools.ipv6: 2001:db8:100::/49 is too small'],
  [
    somePools({ ipv6: { '10.240.0.0/16': '2001:db8:1::/48' } }),
    'address_pools.ipv6: 2001:db8:1::/48 and 2001:db8:1::/64 overlap',
  ],
  [somePools({ ipv6: { '10.0.0.0/16': '2001:db8:100::/48' } }), 'address_pools.ipv6: private_ipv4 has no 10.0.0.0/16'],
  [somePools({ ipv6: { '10.240.0.0/16': 1 } }), 'address_pools.ipv6.10.240.0.0/16 must be a string'],
])('%j is refused: %s', async (change, fault) => {
  const faults = await faultsOf(change)
  expect(faults.join('\n')).toContain(fault)
  expect(faults.join('')).not.toContain('\n')
})

test('every fault of the form is named at once, each once', async () => {
  const bad = {
    ...account,
    telephone_number: '0',
    country_code: 'Q',
    vat_registration_number: 'x',
    foo: 1,
    status: 'x',
  }
  expect(await faultsOf({ accounts: [bad, ...Array.from({ length: 20 }, () => ({ ...bad, name: 1 }))] })).toHaveLength(
    5 + 20 * 6,
  )
})

test('every fault is named at once', async () => {
  expect(
    await faultsOf({
      hypervisors: ['gb1-z', 'gb1-y'].map((zone) => ({ name: 'a', zone, ram: 1 })),
      address_pools: { ...pools, public_ipv4: ['x', 'y'] },
    }),
  ).toHaveLength(5)
})

test.each<[string, object]>([
  ...['closed', 'deleted'].map((status): [string, object] => [
    `another account of the owner of one that is ${status}`,
    {
      accounts: [
        { ...account, status },
        { ...second, owner: ADA },
      ],
    },
  ]),
  [
    'ranges that touch, and ranges of two kinds that overlap',
    somePools({ private_ipv4: ['10.0.0.1-10.0.0.9', '10.0.0.10-10.0.0.19'], public_ipv4: ['10.0.0.0/24'] }),
  ],
  [
    'a handle or a name of two kinds',
    {
      server_types: [{ ...aRegion().server_types[0], handle: 'gb1-a' }],
      hypervisors: [{ name: 'gb1-a', zone: 'gb1-a', ram: 1 }],
      images: [{ ...image, handle: 'gb1-a' }],
    },
  ],
])('a region may have %s', async (_what, change) => expect(await faultsOf(change)).toEqual([]))

test('a text that is no YAML is refused with its line', async () => {
  expect(await parseRegion('name: gb1\nzones: [')).toMatchObject({
    ok: false,
    faults: [expect.stringMatching(/^line \d: /)],
  })
  expect(await parseRegion('name: gb1\ndomain: !vault x\n')).toEqual({
    ok: false,
    faults: ['line 2: Unresolved tag: !vault'],
  })
  expect(await parseRegion(`name: ${ADA}`)).toMatchObject({ ok: false })
  expect(await parseRegion('gb1')).toEqual({ ok: false, faults: ['the file must be an object'] })
})

test('a region file that is not UTF-8 is refused with the byte', async () => {
  expect(await parseRegion(Buffer.from('name: g\xfc1\n', 'latin1'))).toEqual({
    ok: false,
    faults: ['it is not UTF-8: the byte at offset 7 is wrong'],
  })
})
