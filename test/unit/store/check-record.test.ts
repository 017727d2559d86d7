import { describe, expect, test } from 'vitest'
import { sha256 } from '../../../src/metadata/user-data.ts'
import { checkRecord, type CheckLimits } from '../../../src/store/check-record.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const BYTES = Buffer.from('#!/bin/sh\n')
const DESCRIBED = { size: BYTES.length, sha256: sha256(BYTES) }
const LIMITS: CheckLimits = { region: 'gb1', userDataMaxBytes: BYTES.length }

/** The paths and messages of a record's faults. */
function faultsOf(document: unknown, userData: Uint8Array | 'none' | undefined, limits = LIMITS): string[] {
  const checked = checkRecord(document, userData, limits)
  return checked.ok ? [] : checked.faults.map(({ path, message }) => `${path} ${message}`)
}

test('a record that does not describe its user-data gets the description, in a copy', () => {
  const document = Object.freeze(anInstance())
  expect(checkRecord(document, BYTES, LIMITS)).toMatchObject({
    ok: true,
    value: { document: { ...document, userData: DESCRIBED }, instance: { userData: DESCRIBED } },
  })
})

test('a record without user-data is complete as it is, with all of its fields', () => {
  const document = anInstance({ later: 'a field of a newer publisher' })
  expect(checkRecord(document, 'none', LIMITS)).toMatchObject({ ok: true, value: { document } })
})

test('unknown user-data is not checked against its description', () => {
  expect(faultsOf(anInstance({ userData: { size: 99, sha256: '0'.repeat(64) } }), undefined)).toEqual([])
})

describe('a record is refused', () => {
  const tooLong = '/userData is 11 bytes, more than the limit of 10 (IMDS_USER_DATA_MAX_BYTES)'
  const ofRegion = '/region must be gb1, the region of this store'
  test.each<[string, unknown, Uint8Array | 'none', string[]]>([
    [
      'with another description than its user-data has',
      anInstance({ userData: { ...DESCRIBED, size: 1 } }),
      BYTES,
      ['/userData/size does not match the 10 bytes of the user-data'],
    ],
    [
      'with a description and no user-data',
      anInstance({ userData: DESCRIBED }),
      'none',
      ['/userData describes user-data that is missing'],
    ],
    ['with user-data beyond the limit', anInstance(), Buffer.alloc(11), [tooLong]],
    ['of another region', anInstance({ region: 'gb2' }), 'none', [ofRegion]],
    ['of another region, with other user-data', anInstance({ region: 'gb2' }), Buffer.alloc(11), [ofRegion, tooLong]],
    [
      'that is too long as JSON, whatever makes it long',
      anInstance({ later: 'x'.repeat(300_000) }),
      'none',
      [expect.stringMatching(/^ is 30\d+ bytes as JSON/) as string],
    ],
  ])('%s', (_what, document, bytes, faults) => expect(faultsOf(document, bytes)).toEqual(faults))
})

test.each([null, undefined, 'x', 7, [], {}])(
  '%j is no record: it is refused without an exception, with and without user-data',
  (document) => {
    for (const userData of ['none', BYTES, undefined] as const)
      expect(faultsOf(document, userData).length).toBeGreaterThan(0)
  },
)

test('a store of files has records of any region', () => {
  expect(faultsOf(anInstance({ region: 'gb2' }), 'none', { ...LIMITS, region: undefined })).toEqual([])
})
