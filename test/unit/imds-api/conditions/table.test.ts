import { expect, test } from 'vitest'
import { findConditions } from '../../../../src/conditions/condition.ts'
import type { RegionState } from '../../../../src/imds-api/conditions/region-state.ts'
import { API_CONDITIONS, readConditions, type ServiceState } from '../../../../src/imds-api/conditions/table.ts'
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
  actions: { waiting: 0, age: 0, unfetched: 0 },
  invitations: { unsent: 0, fault: '' },
}

const DAY_MS = 86_400_000
const SERVICE: ServiceState = {
  databaseProblem: undefined,
  region: STATE,
  publishing: { problem: undefined, isStoreBehind: false },
  certificates: [{ listener: 'clients', endMs: NOW + 90 * DAY_MS }],
  nowMs: NOW,
}
const region = (change: Partial<RegionState>) => ({ region: { ...STATE, ...change } })
const problem = (isDatabaseAway: boolean) => ({
  problem: { reason: 'no answer', isDatabaseAway },
  isStoreBehind: false,
})
const withHypervisor = (change: Partial<RegionHypervisor>) =>
  region({ hypervisors: { hypervisors: [{ ...HYPERVISOR, ...change }], storeProblem: undefined } })
const announcing = (change: Partial<NonNullable<RegionHypervisor['announced']>>) =>
  withHypervisor({ announced: { ...HYPERVISOR.announced!, ...change } })
const poolOf = (used: number) => region({ pools: [{ ...STATE.pools[0]!, used }] })
const SILENT = '2026-11-23T11:57:00Z'

/** A fault -> the one condition that is found, and its text. */
type Fault = [code: string, change: Partial<ServiceState>, text: string]
const FAULTS: Fault[] = [
  [
    'database-unreachable',
    { databaseProblem: 'refused', region: undefined, publishing: problem(true) },
    'the database does not answer: refused',
  ],
  [
    'servers-not-published',
    {
      ...region({ outbox: { length: 9, age: 300, faulty: 0 }, hypervisors: { hypervisors: [], storeProblem: 'no' } }),
      publishing: problem(false),
    },
    'servers cannot be published: no answer',
  ],
  [
    'store-behind',
    { publishing: { problem: undefined, isStoreBehind: true } },
    'the store has lost changes, and every server is published again',
  ],
  [
    'servers-waiting',
    region({ outbox: { length: 9, age: 300, faulty: 0 } }),
    '9 servers wait to be published, the oldest for 5 min',
  ],
  [
    'server-refused',
    region({
      outbox: { length: 1, age: 300, faulty: 1 },
      refused: [{ id: 'srv-a', account: 'acc-a', fault: 'taken: ...' }],
    }),
    'the store refuses the records of 1 servers; srv-a: taken: ...',
  ],
  ['hypervisors-silent', announcing({ seenAt: SILENT, lagSeconds: 99 }), 'no daemon reports from hv1'],
  ['hypervisors-silent', withHypervisor({ announced: undefined }), 'no daemon reports from hv1'],
  ['hypervisor-duplicate', announcing({ duplicate: true }), 'several daemons announce themselves as hv1'],
  ['hypervisors-behind', announcing({ lagSeconds: 61 }), 'behind by more than a minute: hv1'],
  [
    'actions-not-fetched',
    region({ actions: { waiting: 1, age: 130, unfetched: 121 } }),
    'an action has waited for its hypervisor for 2 min',
  ],
  ['pool-full', poolOf(254), 'full: 10.0.0.0/24'],
  ['pool-nearly-full', poolOf(229), 'nearly full: 10.0.0.0/24'],
  ['ram-nearly-used', withHypervisor({ free: 100 }), '100 of 4096 MB of RAM are free'],
  [
    'invitation-not-sent',
    region({ invitations: { unsent: 1, fault: 'no answer' } }),
    '1 invitations could not be sent: no answer',
  ],
  [
    'certificate-ends',
    { certificates: [{ listener: 'hypervisors', endMs: NOW + 5 * DAY_MS }] },
    'the certificate for hypervisors ends in 5 d',
  ],
]

test('nothing is found in a region that is well, and of hypervisors without servers', () => {
  const found = (change: Partial<ServiceState>) => findConditions(API_CONDITIONS, { ...SERVICE, ...change })
  const silent = { ...HYPERVISOR.announced!, seenAt: SILENT, duplicate: true } as const
  for (const change of [{}, withHypervisor({ announced: silent, servers: 0 }), { publishing: problem(true) }])
    expect(found(change)).toEqual([])
})

test.each<Fault>(FAULTS)('%s: with one fault exactly its condition is found', (code, change, text) => {
  const found = findConditions(API_CONDITIONS, { ...SERVICE, ...change })
  expect(found.map((one) => [one.code, one.text])).toEqual([[code, text]])
})

test('each condition of imds-api is in the table of faults', () => {
  const codes = API_CONDITIONS.map(({ code }) => code)
  expect([...new Set(FAULTS.map(([code]) => code))].sort()).toEqual(codes.sort())
})

test('a database that does not answer is a condition', async () => {
  const { region: read, found } = await readConditions({
    ...SERVICE,
    readRegion: () => Promise.reject(new Error('refused')),
    certificates: () => [],
    nowMs: () => NOW,
  })
  expect([read, found]).toMatchObject([undefined, [{ code: 'database-unreachable', unready: true }]])
})
