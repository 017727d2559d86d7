import { expect, test } from 'vitest'
import { warningsOf } from '../../../src/imdsctl/record-warnings.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const ignored = (path: string) => `${path} is no field of a record, and is ignored`
const nic = { id: 'int-a', macAddress: '02:24:19:00:00:01', ipv4Addresses: ['10.0.0.2/8'] }

test.each<[string, Record<string, unknown>, readonly string[]]>([
  ['no unknown field', {}, []],
  ['a misspelt field', { publickeys: [] }, [ignored('/publickeys')]],
  ['a field of a later version', { quota: 5 }, [ignored('/quota')]],
  ['an inherited name', { constructor: 1 }, [ignored('/constructor')]],
  ['a field of an object', { options: { httpToken: 'required' } }, [ignored('/options/httpToken')]],
  [
    'a field of an item of a list of a list',
    { interfaces: [nic, { ...nic, cloudIps: [{ public_ipv4: '192.0.2.1' }] }] },
    [ignored('/interfaces/1/cloudIps/0/public_ipv4')],
  ],
  ['a name that no map may have', { blockDevices: { sda: 'sda' } }, [ignored('/blockDevices/sda')]],
  ['a name with special characters', { 'a/b~\n': 1 }, [ignored('/a~1b~0\\u000a')]],
  ['a long name', { ['x'.repeat(1000)]: 1 }, [ignored(`/${'x'.repeat(64)}...`)]],
  ['tags that are not shown', { tags: { 'a b': 'x' } }, []],
  [
    'tags that no guest can read',
    { tags: { 'a b': 'x', Name: 'y', _index: 'z' }, options: { instanceMetadataTags: 'enabled' } },
    ['/tags/a b', '/tags/_index'].map((path) => `${path} is a tag that no guest can read, because of its key`),
  ],
])('of a record with %s the warnings name what no guest sees', (_what, change, expected) => {
  expect(warningsOf(anInstance(change))).toEqual(expected)
})

test('ten warnings of a record are given, and the number of the others', () => {
  const many = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`later${i}`, i]))
  const warnings = warningsOf(anInstance(many))
  expect([warnings.length, warnings.at(-1)]).toEqual([11, '20 more fields or tags are ignored'])
})

test.each([[undefined], [null], [[]], ['text'], [{ interfaces: 'none', tags: [], options: null }]])(
  'a document that is no record has no warnings: %j',
  (document) => expect(warningsOf(document)).toEqual([]),
)
