import { expect, test } from 'vitest'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import { plan, type Origin } from '../../../../src/imdsd/view/plan.ts'
import type { Loaded } from '../../../../src/store/source.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const NOW_MS = Date.parse('2026-11-20T12:00:00Z')
const DAY_MS = 24 * 3_600_000
const ORIGINS: readonly Origin[] = ['index', 'notice', 'peer']
const current: ValidRecord = { instance: parsed(anInstance()), userData: undefined, digest: 'one', order: 1, lost: [] }
const record = (change: Record<string, unknown> = {}, digest = 'two', order = 1): Loaded => ({
  kind: 'record',
  id: ID,
  digest,
  order,
  document: anInstance(change),
  userData: undefined,
  userDataSha256: undefined,
})
const kinds = (
  loaded: Loaded,
  served: ValidRecord | undefined,
  { hypervisor }: { hypervisor: string | undefined } = { hypervisor: 'hv1' },
) =>
  ORIGINS.map(
    (origin) =>
      plan(loaded, served, served?.order ?? 0, origin, { hypervisor, userDataMaxBytes: 16_384, wall: () => NOW_MS })
        .kind,
  )

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
    plan(record({ hypervisors: ['hv2'] }), current, 1, 'notice', {
      ...{ hypervisor: 'hv1', userDataMaxBytes: 0, wall: () => NOW_MS },
    }),
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
    expect(kinds({ kind: 'removed', id: ID, order: 2 }, served)).toEqual(['remove', 'remove', 'remove'])
})

test('invariant 8: an instance missing from the store is kept; one that only the index has is a fault', () => {
  expect(kinds({ kind: 'absent', id: ID }, current)).toEqual(['keep-absent', 'keep-absent', 'keep-absent'])
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

const PARTS = { hypervisor: 'hv1', userDataMaxBytes: 16_384, wall: () => NOW_MS }
const gone = (order: number): Loaded => ({ kind: 'removed', id: ID, order })

test('E3: what is earlier than the view has seen is not applied, and equal to a removal neither', () => {
  const served = { ...current, order: 5 }
  const kindOf = (loaded: Loaded, has: ValidRecord | undefined, seen: number) =>
    plan(loaded, has, seen, 'index', PARTS).kind
  const of = (...orders: number[]) => orders.map((order) => kindOf(record({}, 'x', order), served, 5))
  expect(of(4, 5, 6)).toEqual(['behind', 'replace', 'replace'])
  expect([4, 5, 6].map((order) => kindOf(gone(order), served, 5))).toEqual(['behind', 'remove', 'remove'])
  expect([4, 5, 6].map((order) => kindOf(record({}, 'x', order), undefined, 5))).toEqual([
    'behind',
    'behind',
    'replace',
  ])
  // a comparison at 7 did not have it, so what it had between was replaced by then
  expect([4, 5, 6, 7, 8].map((order) => kindOf(record({}, 'x', order), served, 7))).toEqual([
    'behind',
    'replace',
    'behind',
    'behind',
    'replace',
  ])
  expect(kindOf(gone(6), served, 7), 'a removal gives no address').toBe('remove')
  const elsewhere = (order: number) => record({ hypervisors: ['hv2'] }, 'x', order)
  expect([4, 6].map((order) => kindOf(elsewhere(order), served, 5))).toEqual(['behind', 'remove'])
  expect(kindOf(elsewhere(4), undefined, 5)).toBe('remove') // it would not enter the view
  expect(kindOf(gone(4), undefined, 5)).toBe('remove')
  // before there was an order
  expect([kindOf(record({}, 'x', 0), undefined, 0), kindOf(record({}, 'x', 0), { ...current, order: 0 }, 0)]).toEqual([
    'replace',
    'replace',
  ])
})

test('what was published more than a day in the future is faulty: one wrong clock must not lock a region', () => {
  const atMs = (ms: number) => ms * 1000
  for (const served of [undefined, current]) {
    expect(kinds(record({}, 'x', atMs(NOW_MS + DAY_MS)), served)).toEqual(['replace', 'replace', 'replace'])
    for (const loaded of [record({}, 'x', atMs(NOW_MS + DAY_MS) + 1), gone(atMs(NOW_MS + DAY_MS) + 1)])
      expect(plan(loaded, served, 1, 'index', PARTS)).toMatchObject({ kind: 'fault', fault: { reason: 'order' } })
  }
})
