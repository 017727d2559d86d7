import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { RECORD_FORM, rangesOf } from '../../../src/metadata/instance.ts'
import { InstanceSchema, parse, restore } from '../../../src/metadata/record.ts'
import { parsed } from '../../support/guest.ts'
import { aFullInstance, anInstance } from '../../support/instance.ts'
import { recordTable } from '../../support/record-table.ts'

const nic = (change: Record<string, unknown>) => [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'], ...change }]

function faultsOf(record: unknown): string[] {
  const result = parse(record)
  return result.ok ? [] : result.faults.map(({ path, message }) => `${path} ${message}`)
}

test('a good record is filled with its defaults and frozen to the bottom', () => {
  const instance = parsed(anInstance())
  expect(instance.options).toEqual({ httpEndpoint: 'enabled', httpTokens: 'optional', httpPutResponseHopLimit: 1, httpProtocolIpv6: 'disabled', instanceMetadataTags: 'disabled' })
  expect(instance.interfaces[0]).toMatchObject({ network: 'default', ipv6Addresses: [], ipv6Prefixes: [], dhcpv6: false })
  expect(Object.isFrozen(instance.interfaces[0]!.cloudIps)).toBe(true)
  expect(parse(aFullInstance()).ok).toBe(true)
})

test('what was kept under another schema is known as that', () => {
  expect(RECORD_FORM, 'the schema changed: set RECORD_FORM anew').toBe(createHash('sha256').update(JSON.stringify(InstanceSchema)).digest('hex').slice(0, 16))
})

test('parse does not change what it was given', () => {
  const record = anInstance()
  const before = JSON.stringify(record)
  parse(record)
  expect(JSON.stringify(record)).toBe(before)
})

test('unknown fields are ignored at every depth, so that a publisher may be newer than a daemon', () => {
  const instance = parsed(anInstance({ later: { x: 1 }, interfaces: nic({ later: true }), blockDevices: { root: 'sda1', nvme0: 'x' } }))
  expect(instance).not.toHaveProperty('later')
  expect(instance.interfaces[0]).not.toHaveProperty('later')
  expect(instance.blockDevices).toEqual({ root: 'sda1' })
})

test('all faults are told at once, each with its path, none with the record\'s values', () => {
  const faults = faultsOf({ ...anInstance(), id: 'SECRET', revision: 0, region: undefined, zone: {}, interfaces: nic({ macAddress: 'SECRET', ipv4Addresses: ['SECRET'] }), publicKeys: [{ user: 'usr-a', key: 'SECRET' }] })
  expect(faults.map((fault) => fault.split(' ', 1)[0]).sort()).toEqual([
    '/id', '/interfaces/0/ipv4Addresses/0', '/interfaces/0/macAddress', '/publicKeys/0/key', '/region', '/revision', '/zone/handle', '/zone/id'])
  expect(faults.join()).not.toContain('SECRET')
})

describe('a record is faulty', () => {
  const ROWS: [string, unknown, RegExp][] = [
    ['that is no object', [], /^ must be a JSON object/],
    ['that is nothing', null, /^ must be a JSON object/],
    ['of another schema', anInstance({ schema: 2 }), /^\/schema must be the number 1/],
    ['without a schema', anInstance({ schema: undefined }), /^\/schema/],
    ['with a revision that is no whole number', anInstance({ revision: 1.5 }), /^\/revision/],
    ['with a revision as text', anInstance({ revision: '1' }), /^\/revision/],
    ['with an id of another kind', anInstance({ id: 'grp-abcde' }), /^\/id must be an id such as srv-/],
    ['with an id in capitals', anInstance({ id: 'srv-ABCDE' }), /^\/id/],
    ['with a host name that is an address', anInstance({ fqdn: '10.0.0.2' }), /^\/fqdn/],
    ['with a host name on two lines', anInstance({ fqdn: 'a.example.com\nb' }), /^\/fqdn/],
    ['without interfaces', anInstance({ interfaces: [] }), /^\/interfaces/],
    ['with a MAC address in capitals', anInstance({ interfaces: nic({ macAddress: '02:24:19:00:00:EE' }) }), /macAddress must be a MAC address in lower case/],
    ['with an IPv4 address with leading zeros', anInstance({ interfaces: nic({ ipv4Addresses: ['10.0.0.02'] }) }), /ipv4Addresses\/0 must be an IPv4 address/],
    ['with a prefix length that is too long', anInstance({ interfaces: nic({ ipv4Addresses: ['10.0.0.2/33'] }) }), /ipv4Addresses\/0/],
    ['with a prefix length with a leading zero', anInstance({ interfaces: nic({ ipv4Addresses: ['10.0.0.2/08'] }) }), /ipv4Addresses\/0/],
    ['with an IPv6 address in a longer form', anInstance({ interfaces: nic({ ipv6Addresses: ['fd00:0::2'] }) }), /ipv6Addresses\/0 must be an IPv6 address in its shortest/],
    ['with an IPv4 address in the form of IPv6', anInstance({ interfaces: nic({ ipv6Addresses: ['::ffff:10.0.0.2'] }) }), /ipv6Addresses\/0/],
    ['with an IPv6 address with a zone', anInstance({ interfaces: nic({ ipv6Addresses: ['fe80::2%eth0'] }) }), /ipv6Addresses\/0/],
    ['with an IPv6 prefix without a length', anInstance({ interfaces: nic({ ipv6Prefixes: ['2a02:1348:178:1::'] }) }), /ipv6Prefixes\/0 must be an IPv6 network of global/],
    ['with one IPv6 prefix twice', anInstance({ interfaces: [...nic({ ipv6Prefixes: ['fd00:1::/64'] }), { id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv6Prefixes: ['fd00:1::/64'] }] }), /interfaces\/1\/ipv6Prefixes\/0 is the same prefix as \/interfaces\/0/],
    ['with one MAC address twice', anInstance({ interfaces: [...nic({}), { id: 'int-b', macAddress: '02:24:19:00:00:ee' }] }), /interfaces\/1\/macAddress is the same MAC address as \/interfaces\/0/],
    ['with one address twice', anInstance({ interfaces: nic({ ipv4Addresses: ['10.0.0.2/30', '10.0.0.2/24'] }) }), /ipv4Addresses\/1 is the same address/],
    ['with two keys of one user', anInstance({ publicKeys: [{ user: 'usr-a', key: 'ssh-rsa AAAA' }, { user: 'usr-a', key: 'ssh-rsa BBBB' }] }), /publicKeys\/1\/user is the same user/],
    ['with a key on two lines', anInstance({ publicKeys: [{ user: 'usr-a', key: 'ssh-rsa AAAA\nssh-rsa BBBB' }] }), /publicKeys\/0\/key/],
    ['with a group\'s name on two lines', anInstance({ serverGroups: [{ id: 'grp-a', name: 'a\nb' }] }), /serverGroups\/0\/name/],
    ['with an option of another value', anInstance({ options: { httpTokens: 'maybe' } }), /httpTokens must be one of optional, required/],
    ['with a hop limit of 0', anInstance({ options: { httpPutResponseHopLimit: 0 } }), /httpPutResponseHopLimit/],
    ['with a digest of another form', anInstance({ userData: { size: 1, sha256: 'x' } }), /userData\/sha256/],
    ['with a seal that is no time', anInstance({ sealedAt: true }), /^\/sealedAt must be a time such as/],
    ['with a seal at a time without a zone', anInstance({ sealedAt: '2026-11-20T15:04:05' }), /^\/sealedAt/],
    ['with a seal in a thirteenth month', anInstance({ sealedAt: '2026-13-20T15:04:05Z' }), /^\/sealedAt/],
    ['on no hypervisor', anInstance({ hypervisors: [] }), /^\/hypervisors/],
    ['on three hypervisors', anInstance({ hypervisors: ['a', 'b', 'c'] }), /^\/hypervisors/],
    ['with a list in the place of an object, as some encoders write an empty one', anInstance({ blockDevices: [] }), /^\/blockDevices/],
    ['that is nested too deeply', anInstance({ deep: JSON.parse('['.repeat(20_000) + ']'.repeat(20_000)) as unknown }), /nested too deeply/],
    ['on one hypervisor twice', anInstance({ hypervisors: ['a', 'a'] }), /hypervisors\/1 is the same hypervisor/],
  ]
  test.each(ROWS)('%s', (_what, record, fault) => { expect(faultsOf(record).join('\n')).toMatch(fault) })
})

test('a tag named like a part of JavaScript does no harm: it is left out', () => {
  const instance = parsed(anInstance({ tags: JSON.parse('{"__proto__": "x", "constructor": "y", "Name": "z"}') as unknown }))
  expect(Object.entries(instance.tags)).toEqual([['Name', 'z']])
  expect(({} as Record<string, unknown>)['x']).toBeUndefined()
})

test('an instance is known by the addresses and prefixes of its interfaces, never by its cloud IPs', () => {
  expect(rangesOf(parsed(aFullInstance())).map(({ range }) => range)).toEqual(['10.0.0.2', '10.0.9.2', '2a02:1348:178::2', '2a02:1348:178::3', '2a02:1348:178:1::/64', '10.1.0.2'])
})

test('an interface may own prefixes that lie inside each other, or hold addresses of its own', () => {
  expect(faultsOf(anInstance({ interfaces: nic({ ipv6Addresses: ['fd00:1::2/64'], ipv6Prefixes: ['fd00:1::/48', 'fd00:1::/64'] }) }))).toEqual([])
})

test('a record that an older daemon kept, without a field that is new, is restored with its default', () => {
  const kept = JSON.parse(JSON.stringify(parsed(anInstance()))) as { interfaces: { ipv6Prefixes?: string[] }[] }
  delete kept.interfaces[0]!.ipv6Prefixes
  expect(restore(kept)).toEqual(parsed(anInstance()))
  expect(restore({ ...kept, revision: 0 })).toBeUndefined()
})

test('the schema is JSON Schema that can be published as it is', () => {
  const schema = JSON.parse(JSON.stringify(InstanceSchema)) as { type: string, required: string[], properties: object }
  expect(schema.type).toBe('object')
  expect(schema.required).toContain('revision')
  expect(Object.keys(schema.properties)).toContain('userData')
})

test('the README\'s table of fields is the schema\'s (node test/support/record-table.ts prints it)', () => {
  const readme = readFileSync(new URL('../../../README.md', import.meta.url), 'utf8')
  expect(/<!-- record table -->\n(.*)\n<!-- end of record table -->/s.exec(readme)?.[1]).toBe(recordTable())
})
