import { expect, test } from 'vitest'
import { describeUnknown, nearest } from '../../../src/runtime/nearest.ts'

const KNOWN = ['IMDS_REGION', 'IMDS_STORE', 'IMDS_STATE_DIR']

test.each([
  ['IMDS_REGOIN', 'IMDS_REGION'],
  ['IMDS_REGIONS', 'IMDS_REGION'],
  ['IMDS_STOR', 'IMDS_STORE'],
  ['IMDS_STATEDIR', 'IMDS_STATE_DIR'],
  ['IMDS_COLOUR', undefined],
  ['X', undefined],
])('%s was meant to be %s', (name, meant) => expect(nearest(name, KNOWN)).toBe(meant))

test('a message names what was meant, if there is such a name', () => {
  expect([describeUnknown('IMDS_REGOIN', KNOWN), describeUnknown('IMDS_COLOUR', KNOWN)]).toEqual([
    'IMDS_REGOIN (did you mean IMDS_REGION?)',
    'IMDS_COLOUR',
  ])
})
