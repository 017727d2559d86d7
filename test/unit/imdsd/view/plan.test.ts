import { expect, test } from 'vitest'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import { plan, type Origin } from '../../../../src/imdsd/view/plan.ts'
import type { Loaded } from '../../../../src/store/source.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const ORIGINS: readonly Origin[] = ['index', 'notice', 'peer']
const current: ValidRecord = { instance: parsed(anInstance()), userData: undefined, digest: 'one' }
const record = (change: Record<string, unknown> = {}, digest = 'two'): Loaded => ({
  kind: 'record',
  id: ID,
  digest,
  document: anInstance(change),
  userData: undefined,
  userDataSha256: undefined,
})
const kinds = (
  loaded: Loaded,
  served: ValidRecord | undefined,
  { hypervisor }: { hypervisor: string | undefined } = { hypervisor: 'hv1' },
) => ORIGINS.map((origin) => plan(loaded, served, origin, { hypervisor, userDataMaxBytes: 16_384 }).kind)

test('a record that names this hypervisor replaces the served one, whatever caused the read', () => {
  for (const change of [{}, { revision: 7 }, { hypervisors: ['hv2', 'hv1'] }]) {
    expect(kinds(record(change), undefined)).toEqual(['replace', 'replace', 'replace'])
    expect(kinds(record(change), current)).toEqual(['replace', 'replace', 'replace'])
  }
})

test('a record with the digest of the served one is kept', () => {
  expect(kinds(record({}, 'one'), current)).toEqual(['keep', 'keep', 'keep'])
})

test('a record without a digest replaces the served one, and enters a view without it', () => {
  const withoutDigest = { ...record(), digest: undefined } as Loaded
  for (const served of [undefined, current, { ...current, digest: undefined }])
    expect(kinds(withoutDigest, served)).toEqual(['replace', 'replace', 'replace'])
})

test('E2: a record of other hypervisors never enters the view and leaves it, whatever its digest', () => {
  for (const digest of ['one', 'two']) {
    for (const served of [undefined, current])
      expect(kinds(record({ hypervisors: ['hv2'] }, digest), served)).toEqual(['remove', 'remove', 'remove'])
  }
  expect(
    plan(record({ hypervisors: ['hv2'] }), current, 'notice', { hypervisor: 'hv1', userDataMaxBytes: 0 }),
  ).toMatchObject({ movedTo: { instance: { hypervisors: ['hv2'] } } })
})

test("without a hypervisor's name every instance of the store is served", () => {
  expect(kinds(record({ hypervisors: ['hv2'] }), undefined, { hypervisor: undefined })).toEqual([
    'replace',
    'replace',
    'replace',
  ])
})

test('a tombstone removes', () => {
  for (const served of [undefined, current])
    expect(kinds({ kind: 'removed', id: ID }, served)).toEqual(['remove', 'remove', 'remove'])
})

test('invariant 8: an instance missing from the store is kept; one that only the index has is a fault', () => {
  expect(kinds({ kind: 'absent', id: ID }, current)).toEqual([
    'keep-unconfirmed',
    'keep-unconfirmed',
    'keep-unconfirmed',
  ])
  expect(kinds({ kind: 'absent', id: ID }, undefined)).toEqual(['fault', 'ignore', 'ignore'])
})

test('invariant 3: a faulty record is reported, unless only an unknown peer caused the read', () => {
  for (const loaded of [
    record({ fqdn: '' }),
    { kind: 'unreadable', id: ID, digest: 'x', reason: 'the record is not JSON' },
    { kind: 'rejected', id: ID, digest: 'x', reason: 'it is' },
  ] as const) {
    expect(kinds(loaded, current)).toEqual(['fault', 'fault', 'fault'])
    expect(kinds(loaded, undefined)).toEqual(['fault', 'fault', 'ignore'])
  }
})
