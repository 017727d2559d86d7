import { expect, test } from 'vitest'
import { findingsOf } from '../../../../src/imds-api/page/findings.ts'
import type { RegionState } from '../../../../src/imds-api/page/region-state.ts'
import type { RegionHypervisor } from '../../../../src/imds-api/publish/hypervisors.ts'

const NOW = Date.parse('2026-11-23T12:00:00Z')
const HYPERVISOR: RegionHypervisor = {
  name: 'hv1',
  zone: 'gb1-a',
  ram: 4096,
  free: 1024,
  servers: 3,
  drained_at: null,
  announced: { name: 'hv1', version: '0.1.0', instances: 3, lagSeconds: 0, seenAt: '2026-11-23T11:59:45Z' },
}
const STATE: RegionState = {
  region: 'gb1',
  hypervisors: { hypervisors: [HYPERVISOR], storeProblem: undefined },
  outbox: { length: 0, age: 0, faulty: 0 },
  refused: [],
  pools: [{ kind: 'private_ipv4', range: '10.0.0.0/24', size: 254, used: 3 }],
  invitations: 0,
  postponed: [],
}

/** What is not ok, each as `CHECK STATE TEXT`. */
const found = (change: Partial<RegionState>, reason?: string, isStoreBehind = false) =>
  findingsOf(
    { ...STATE, ...change },
    { problem: reason === undefined ? undefined : { code: 'servers-not-published', reason }, isStoreBehind },
    NOW,
  )
    .filter(({ state }) => state !== 'ok')
    .map(({ check, state, text }) => `${check} ${state} ${text}`)
const withHypervisor = (change: Partial<RegionHypervisor>) => ({
  hypervisors: { hypervisors: [{ ...HYPERVISOR, ...change }], storeProblem: undefined },
})
const poolOf = (used: number) => ({ pools: [{ ...STATE.pools[0]!, used }] })

test('a region that is well has only findings that are ok', () => expect(found({})).toEqual([]))

test('a hypervisor with servers whose daemon is silent or behind is found; one without servers is not', () => {
  const silent = { ...HYPERVISOR.announced!, seenAt: '2026-11-23T11:57:00Z' }
  for (const announced of [silent, { ...silent, seenAt: '' }, undefined]) {
    expect(found(withHypervisor({ announced }))).toEqual(['hypervisors warning no daemon reports from hv1'])
    expect(found(withHypervisor({ announced, servers: 0 }))).toEqual([])
    const late = announced && { ...announced, lagSeconds: 61 }
    expect(found(withHypervisor({ announced: late, servers: 0 }))).toEqual([])
  }
  expect(found(withHypervisor({ announced: { ...HYPERVISOR.announced!, lagSeconds: 61 } }))).toEqual([
    'lag warning behind by more than a minute: hv1',
  ])
  expect(found(withHypervisor({ announced: { ...HYPERVISOR.announced!, duplicate: true } }))).toEqual([
    'names failure several daemons announce themselves as hv1',
  ])
  expect(found(withHypervisor({ announced: { ...silent, duplicate: true }, servers: 0 }))).toEqual([])
})

test('a store that has lost changes is found', () =>
  expect(found({}, undefined, true)).toEqual([
    'store warning it has lost changes, and every server is published again',
  ]))

test('a store that cannot be used, a late outbox, refused servers, full pools and failing mail are found', () => {
  expect(found({ hypervisors: { hypervisors: [], storeProblem: 'no answer' } }, 'no answer')).toEqual([
    'store failure no answer',
    'hypervisors warning what daemons announce cannot be read: no answer',
  ])
  expect(found({ outbox: { length: 9, age: 300, faulty: 2 } })).toEqual([
    'outbox warning 9 servers wait, the oldest for 5 min',
    'refused servers warning the store refuses the records of 2 servers',
  ])
  expect(found(poolOf(229))).toEqual(['pools warning nearly full: 10.0.0.0/24'])
  expect(found(poolOf(254))).toEqual(['pools failure full: 10.0.0.0/24'])
  expect(found({ postponed: [{ id: 'col-a', reason: 'no answer' }] })).toEqual([
    'mail warning 1 invitations could not be sent: no answer',
  ])
  const refused = [{ id: 'srv-a', account: 'acc-a', fault: 'taken: ...' }]
  expect(found({ outbox: { length: 1, age: 0, faulty: 1 }, refused })).toEqual([
    'refused servers warning the store refuses the records of 1 servers; srv-a: taken: ...',
  ])
})
