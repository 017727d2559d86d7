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
  address_pools: pools,
} = aRegion()
const anAccount = (change: object) => ({ accounts: [{ ...account, ...change }, second] })
const aUser = (change: object) => ({ users: [{ ...user, ...change }, mary] })
const somePools = (change: object) => ({ address_pools: { ...pools, ...change } })

test('the example and the region of the tests are right', async () => {
  const example = readFileSync(new URL('../../../../deploy/region.example.yaml', import.meta.url), 'utf8')
  expect(await parseRegion(example)).toMatchObject({ ok: true, value: { file: { name: 'gb1' } } })
  const whole = example.replaceAll(
    /^( *)# (?=(?:password_file|totp_secret_file|applications):| {2}- \{ id: app-)/gm,
    '$1',
  )
  expect(await parseRegion(whole)).toMatchObject({
    ok: true,
    value: {
      file: {
        users: [{ password_file: 'ada.password', totp_secret_file: 'ada.totp' }],
        applications: [{ id: 'app-8xk2p' }],
      },
    },
  })
  expect(await parseRegion(JSON.stringify(aRegion()))).toMatchObject({ ok: true, value: { file: aRegion() } })
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
  [anAccount({ images_limit: 5_001 }), 'accounts.0.images_limit must be from 0 to 5000'],
  [anAccount({ config_maps_limit: -1 }), 'accounts.0.config_maps_limit must be from 0 to 2147483647'],
  [
    anAccount({ telephone_number: '0207' }),
    'accounts.0.telephone_number must be a telephone number of E.164, such as +442079460000',
  ],
  [
    somePools({ public_ipv4: ['203.0.113.0/24', '203.0.113.9-203.0.114.1'] }),
    'address_pools.public_ipv4: 203.0.113.0/24 and 203.0.113.9-203.0.114.1 overlap',
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
  [aDatabaseServer({ status: 'idle' }), 'database_servers.0.status must be "creating" or "active" or '],
  [{ server_types: [{ ...aRegion().server_types[0], status: 'idle' }] }, 'server_types.0.status must be "'],
  [aDatabaseServer({ maintenance_weekday: 7 }), 'database_servers.0.maintenance_weekday must be from 0 to 6'],
  [
    { database_server_types: [{ id: 'typ-aaaaa', name: 'x', disk_size: 1, ram: 1 }] },
    'database_server_types.0.id must be an id such as dbt-demo1',
  ],
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
  [aUser({ ssh_key: `${user!.ssh_key!}\nb` }), 'users.0.ssh_key must be the lines of an authorized_keys file'],
  [aUser({ email_address: 'ada' }), 'users.0.email_address must be an address such as'],
  [{ zones: [{ id: 'zon-aaaa1', handle: 'a', removed: false }] }, 'zones.0.removed is not a known field'],
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

test('entries with removed: true are taken out of the file, whatever else they have', async () => {
  const { zones, hypervisors } = aRegion()
  const removed = {
    zones: [...zones, { id: 'zon-old01', removed: true }],
    hypervisors: [...hypervisors, { name: 'hv-9', zone: 'gone', removed: true }],
    address_pools: { ...pools, removed: ['10.0.0.0/24'] },
  }
  expect(await parseRegion(JSON.stringify({ ...aRegion(), ...removed }))).toMatchObject({
    ok: true,
    value: {
      file: aRegion(),
      removed: {
        zones: ['zon-old01'],
        hypervisors: ['hv-9'],
        users: [],
        address_pools: expect.arrayContaining(['private_ipv4 10.0.0.0/24']) as unknown,
      },
    },
  })
})

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
