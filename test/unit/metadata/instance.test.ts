import { createHash } from 'node:crypto'
import { expect, test } from 'vitest'
import { RECORD_FORM, rangesOf } from '../../../src/metadata/instance.ts'
import { InstanceSchema } from '../../../src/metadata/schema.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aFullInstance } from '../../support/fixtures/instance.ts'

/** A field in other words is the same field. */
const withoutWords = (name: string, value: unknown) =>
  ['description', 'hint'].includes(name) && typeof value === 'string' ? undefined : value

test('a record kept under another schema is recognised as such', () => {
  expect(RECORD_FORM, 'the schema changed: set RECORD_FORM anew').toBe(
    createHash('sha256').update(JSON.stringify(InstanceSchema, withoutWords)).digest('hex').slice(0, 16),
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
