import { describe, expect, test } from 'vitest'
import { sha256 } from '../../../../src/metadata/user-data.ts'
import { validate } from '../../../../src/imdsd/view/validate.ts'
import type { Loaded, LoadedRecord } from '../../../../src/store/source.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const BYTES = Buffer.from('#!/bin/sh\n')
const DESCRIBED = { size: BYTES.length, sha256: sha256(BYTES) }
const loaded = (document: unknown, userData?: Buffer): LoadedRecord => ({
  kind: 'record',
  id: 'srv-abcde',
  digest: 'd1',
  order: 5,
  document,
  userData,
  userDataSha256: userData && sha256(userData),
})

test('invariant 3: a valid record and its user-data become one instance', () => {
  expect(validate(loaded(anInstance()), 16_384)).toEqual({
    ok: true,
    value: { instance: parsed(anInstance()), userData: undefined, digest: 'd1', order: 5, lost: [] },
  })
  const document = anInstance({ userData: DESCRIBED })
  expect(validate(loaded(document, BYTES), BYTES.length)).toEqual({
    ok: true,
    value: { instance: parsed(document), userData: BYTES, digest: 'd1', order: 5, lost: [] },
  })
})

test('sealed user-data is checked but not kept: no guest gets it', () => {
  const document = anInstance({ userData: DESCRIBED, sealedAt: '2026-11-20T15:04:05Z' })
  expect(validate(loaded(document, BYTES), 16_384)).toMatchObject({ ok: true, value: { userData: undefined } })
  expect(validate(loaded(document, Buffer.from('other')), 16_384)).toMatchObject({ reason: 'user-data' })
})

describe('invariant 3: no instance is built from', () => {
  const named = { id: 'srv-abcde', digest: '', reason: 'why' }
  const described = (change: object) => loaded(anInstance({ userData: { ...DESCRIBED, ...change } }), BYTES)
  const ROWS: [string, Exclude<Loaded, { kind: 'removed' | 'absent' }>, object][] = [
    ['what cannot be read', { kind: 'unreadable', ...named }, { reason: 'unreadable', faults: [{ message: 'why' }] }],
    ['what is not authentic', { kind: 'rejected', ...named }, { reason: 'rejected', faults: [{ message: 'why' }] }],
    ['a faulty record', loaded(anInstance({ revision: 0 })), { reason: 'record', faults: [{ path: '/revision' }] }],
    [
      'a record under another id',
      loaded(anInstance({ id: 'srv-other' })),
      { reason: 'id', faults: [{ path: '/id', message: 'is not the id that it is stored under, srv-abcde' }] },
    ],
    [
      'user-data that the record does not describe',
      loaded(anInstance(), BYTES),
      { reason: 'user-data', faults: [{ message: 'is missing, although the instance has user-data' }] },
    ],
    [
      'a record whose user-data is not there',
      loaded(anInstance({ userData: DESCRIBED })),
      { reason: 'user-data', faults: [{ path: '/userData', message: 'describes user-data that is missing' }] },
    ],
    ['user-data of another size', described({ size: 9 }), { faults: [{ path: '/userData/size' }] }],
    ['other user-data', described({ sha256: '0'.repeat(64) }), { faults: [{ path: '/userData/sha256' }] }],
  ]
  test.each(ROWS)('%s', (_what, one, fault) => expect(validate(one, 16_384)).toMatchObject({ ok: false, ...fault }))
  test('user-data that is too long', () => {
    expect(validate(loaded(anInstance({ userData: DESCRIBED }), BYTES), BYTES.length - 1)).toMatchObject({
      reason: 'user-data',
      faults: [{ path: '/userData', message: 'is 10 bytes, more than the limit of 9 (IMDS_USER_DATA_MAX_BYTES)' }],
    })
  })
})
