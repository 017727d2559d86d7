import { createHash } from 'node:crypto'
import { expect, test } from 'vitest'
import { unusableAddresses, RECORD_FORM, rangesOf } from '../../../src/metadata/instance.ts'
import { InstanceSchema } from '../../../src/metadata/schema.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aFullInstance } from '../../support/fixtures/instance.ts'

test('a record kept under another schema is recognised as such', () => {
  expect(RECORD_FORM, 'the schema changed: set RECORD_FORM anew').toBe(
    createHash('sha256').update(JSON.stringify(InstanceSchema)).digest('hex').slice(0, 16),
  )
})

test("an instance is identified by its interfaces' addresses and prefixes, never by its cloud IPs", () => {
  expect(rangesOf(parsed(aFullInstance())).map(({ range }) => range)).toEqual([
    '10.0.0.2',
    '10.0.9.2',
    '2a02:1348:178::2',
    '2a02:1348:178::3',
    '2a02:1348:178:1::/64',
    '10.1.0.2',
  ])
})

test('E1: unusable addresses do not identify an instance', () => {
  const nic = {
    id: 'int-a',
    macAddress: '02:24:19:00:00:01',
    ipv4Addresses: ['169.254.7.7/16', '10.0.0.2/30'],
    ipv6Addresses: ['fe80::a/64', 'fd00::2'],
  }
  const instance = parsed(aFullInstance({ interfaces: [nic] }))
  expect(rangesOf(instance).map(({ range }) => range)).toEqual(['10.0.0.2', 'fd00::2'])
  expect(unusableAddresses(instance)).toEqual([
    { network: 'default', range: '169.254.7.7' },
    { network: 'default', range: 'fe80::a' },
  ])
})

test('the addresses of an interface belong to its network', () => {
  const nic = (n: number, network?: string) => ({
    id: `int-${n}`,
    macAddress: `02:24:19:00:00:0${n}`,
    ipv4Addresses: ['10.0.0.2/30'],
    ...(network !== undefined && { network }),
  })
  expect(rangesOf(parsed(aFullInstance({ interfaces: [nic(1), nic(2, 'red')] })))).toEqual([
    { network: 'default', range: '10.0.0.2' },
    { network: 'red', range: '10.0.0.2' },
  ])
})
