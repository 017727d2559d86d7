import { expect, test } from 'vitest'
import { buildReadiness, type ReadinessParts } from '../../../../src/imdsd/operator/readiness.ts'
import type { ServedInstance } from '../../../../src/imdsd/view/served-instance.ts'
import type { SyncStatus } from '../../../../src/imdsd/view/sync-state.ts'
import { READY } from '../../../support/fixtures/ready.ts'

const syncWith = (change: Partial<SyncStatus>): ReadinessParts['sync'] => ({
  status: () => ({ ...READY, unconfirmed: 1, faulty: 1, ...change }),
  faults: () => [['srv-b', { reason: 'record', faults: [{ path: '/id', message: 'is missing' }] }] as const].values(),
  isUnconfirmed: (id) => id === 'srv-a',
})
const instances = ['srv-a', 'srv-b', 'srv-c'].map((id) => ({ instance: { id, revision: 5 } }) as ServedInstance)
const view: ReadinessParts['view'] = {
  size: 3,
  instances: () => instances.values(),
  contested: () => new Map(),
  unconfirmed: () => new Map(),
}
const PARTS: ReadinessParts = {
  sync: syncWith({}),
  source: { description: 'redis://x' },
  view,
  firewall: {
    status: () => ({ required: true, applied: true, ageSeconds: 0 }),
    unconfirmed: function* () {
      yield* []
    },
  },
  viewAgeSeconds: () => 1.23456,
  isDuplicate: () => false,
  listenerProblems: () => [],
}

test('readiness shows the state of sync, the view and the firewall', () => {
  expect(buildReadiness(PARTS)).toEqual({
    ready: true,
    store: 'redis://x',
    connected: true,
    instances: 3,
    viewAgeSeconds: 1.235,
    unconfirmed: 1,
    unconfirmedInstances: ['srv-a, revision 5'],
    faulty: 1,
    faultyRecords: ['the record of srv-b in the store is faulty: /id is missing'],
    contestedAddresses: 0,
    unconfirmedAddresses: 0,
    firewall: { required: true, applied: true, ageSeconds: 0 },
  })
})

test('a hint is shown, and the daemon is ready all the same', () => {
  expect(buildReadiness({ ...PARTS, sync: syncWith({ hint: 'no record names hv01' }) })).toMatchObject({
    ready: true,
    hint: 'no record names hv01',
  })
})

test('a store that has lost changes is a problem, and the daemon is ready all the same', () => {
  expect(buildReadiness({ ...PARTS, sync: syncWith({ isStoreBehind: true }) })).toMatchObject({
    ready: true,
    problem: expect.stringMatching(/^Redis has lost changes.*Publish the region again/) as string,
    storeBehind: true,
  })
})

test('the first ten contested addresses are named, and the daemon is ready all the same', () => {
  const contested = new Map(Array.from({ length: 12 }, (_, n) => [`default 10.0.0.${n}`, ['srv-a', 'srv-b']]))
  const {
    ready,
    contestedAddresses,
    contested: named = [],
  } = buildReadiness({ ...PARTS, view: { ...view, contested: () => contested } })
  expect([ready, contestedAddresses, named.length, named[0]]).toEqual([true, 12, 10, 'default 10.0.0.0: srv-a, srv-b'])
})

test('a problem of sync and each problem of a listener make the daemon not ready', () => {
  const sync = syncWith({ ready: false, problem: 'the first resync is not complete' })
  expect(buildReadiness({ ...PARTS, sync })).toMatchObject({
    ready: false,
    problem: 'the first resync is not complete',
  })
  expect(buildReadiness({ ...PARTS, listenerProblems: () => ['no 10.0.0.1'] })).toMatchObject({
    ready: false,
    problem: 'no 10.0.0.1',
  })
  expect(buildReadiness({ ...PARTS, sync, listenerProblems: () => ['no 10.0.0.1'] }).problem).toBe(
    'the first resync is not complete; no 10.0.0.1',
  )
})
