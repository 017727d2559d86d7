import { describe, expect, test } from 'vitest'
import { buildDiagnosis, type DiagnosisParts } from '../../../../src/imdsd/operator/diagnosis.ts'
import type { Loaded } from '../../../../src/store/source.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const record = (change: Record<string, unknown> = {}): Loaded => ({
  kind: 'record',
  id: ID,
  digest: 'd',
  document: anInstance(change),
  userData: undefined,
  userDataSha256: undefined,
})

/** A diagnosis on a store that has one record or fails, and gives one address to its instance. */
function diagnosing({
  loaded,
  fails = false,
  served,
  owner,
  ...change
}: {
  loaded?: Loaded
  fails?: boolean
  served?: Record<string, unknown>
  owner?: string
} & Partial<DiagnosisParts> = {}) {
  const view = new View({}, () => 0, false)
  if (served !== undefined)
    view.replace({ instance: parsed(anInstance(served)), userData: undefined, digest: 'd', order: 1, lost: [] })
  let reads = 0
  const source: DiagnosisParts['source'] = {
    load: async function* (): AsyncIterable<Loaded> {
      reads += 1
      await Promise.resolve()
      if (fails) throw new Error('ECONNREFUSED')
      if (loaded !== undefined) yield loaded
    },
    owner: () => (fails ? Promise.reject(new Error('ECONNREFUSED')) : Promise.resolve(owner)),
  }
  const diagnosis = buildDiagnosis({
    view,
    source,
    sync: { isConnected: () => true, health: { faultOf: () => undefined } },
    conditions: () => [],
    networks: ['default'],
    hypervisor: 'hv1',
    userDataMaxBytes: 16_384,
    wall: () => 0,
    now: () => 5_000,
    ...change,
  })
  return { diagnosis, view, reads: () => reads }
}

test('an instance that is served as the store has it has no diagnosis; the store is not asked', async () => {
  const { diagnosis, reads } = diagnosing({ served: {} })
  expect([(await diagnosis.instance(ID)) ?? 'nothing', reads()]).toEqual(['nothing', 0])
})

describe('an instance that is not served has the reason', () => {
  test.each<[string, Parameters<typeof diagnosing>[0], string]>([
    ['that the store has no record of it', {}, `the store has no record of ${ID}`],
    ['that it was removed', { loaded: { kind: 'removed', id: ID } }, `${ID} was removed from the store`],
    [
      'that its record names others',
      { loaded: record({ hypervisors: ['hv2', 'hv3'] }) },
      `the record of ${ID} names hv2 and hv3, not this hypervisor (hv1)`,
    ],
    [
      'that its record is faulty',
      { loaded: record({ fqdn: '' }) },
      `the record of ${ID} in the store is faulty: /fqdn must be a domain name`,
    ],
    [
      'that it was not read yet',
      { loaded: record() },
      `the record of ${ID} names this hypervisor and was not read yet`,
    ],
    ['that the store does not answer', { fails: true }, 'the store does not answer: ECONNREFUSED'],
  ])('%s', async (_what, state, reason) => {
    expect(await diagnosing(state).diagnosis.instance(ID)).toMatch(new RegExp(`^${RegExp.escape(reason)}`))
  })
})

describe('an instance that is served has what is wrong with it', () => {
  test('a faulty record in the store, with the revision that guests get', async () => {
    const faultOf = () => ({ reason: 'record' as const, faults: [{ path: '/fqdn', message: 'must be a domain name' }] })
    const { diagnosis, reads } = diagnosing({
      served: { revision: 7 },
      sync: { isConnected: () => true, health: { faultOf } },
    })
    expect([await diagnosis.instance(ID), reads()]).toEqual([
      `the record of ${ID} in the store is faulty: /fqdn must be a domain name; revision 7 is served`,
      0,
    ])
  })
  test('an address that others claim too', async () => {
    const { diagnosis, view } = diagnosing({ served: {} })
    view.replace({
      instance: parsed(anInstance({ id: 'srv-other' })),
      userData: undefined,
      digest: 'd',
      order: 1,
      lost: [],
    })
    expect(await diagnosis.instance(ID)).toBe('10.0.0.2 is contested: srv-abcde and srv-other claim it')
  })
  test('an address that it lost to another, which was published later', async () => {
    const { diagnosis, view } = diagnosing({ served: {} })
    view.replace({
      instance: parsed(anInstance({ id: 'srv-other' })),
      userData: undefined,
      digest: 'd',
      order: 2,
      lost: [],
    })
    expect(await diagnosis.instance(ID)).toBe('10.0.0.2 was claimed by an instance published later')
    expect(await diagnosis.instance('srv-other')).toBeUndefined()
  })
  test('networks that this daemon does not serve', async () => {
    expect(await diagnosing({ served: {}, networks: ['red', 'blue'] }).diagnosis.instance(ID)).toBe(
      'this daemon serves red, blue, and none of its interfaces is on one of these networks',
    )
  })
})

test('while the store is lost, that is the reason, and the store is not asked', async () => {
  const { diagnosis, reads } = diagnosing({
    sync: { isConnected: () => false, health: { faultOf: () => undefined } },
    conditions: () => [
      { code: 'store-lost', severity: 'failure', text: 'it was lost', remedy: 'start it' },
      { code: 'clock', severity: 'warning', text: 'it is wrong', remedy: 'set it' },
    ],
  })
  expect([await diagnosis.instance(ID), reads()]).toEqual(['it was lost', 0])
})

describe('an address that no instance of the view has', () => {
  const of = (state: Parameters<typeof diagnosing>[0]) => diagnosing(state).diagnosis.address('default', '10.0.0.2')
  test('has no owner in the store, or one that is not served', async () => {
    expect(await of({})).toBe('the store has no instance with this address on network default: was it published?')
    expect(await of({ owner: ID, loaded: record({ hypervisors: ['hv2'] }) })).toBe(
      `the store names ${ID} as its owner: the record of ${ID} names hv2, not this hypervisor (hv1)`,
    )
    expect(await of({ owner: ID, served: {} })).toBe(
      `the store names ${ID} as its owner: its record has other addresses`,
    )
    expect(await of({ owner: ID, served: {}, networks: ['red'] })).toMatch(
      `the store names ${ID} as its owner: this daemon serves red`,
    )
  })
  test('has the failure of the store as its reason: a diagnosis never rejects', async () => {
    expect(await of({ fails: true })).toBe('the store does not answer: ECONNREFUSED')
  })
})

test('the store is asked 20 times at once and 10 times a second; beyond that the reason says so', async () => {
  let now = 5_000
  const { diagnosis, reads } = diagnosing({ now: () => now })
  const ask = async (times: number) => {
    for (let i = 0; i < times; i++) await diagnosis.instance(ID)
  }
  await ask(20)
  expect(await diagnosis.instance(ID)).toMatch(/^the store was not asked, .*: try again$/)
  expect(await diagnosis.address('default', '10.0.0.2')).toMatch(/^the store was not asked/)
  expect(reads()).toBe(20)
  now += 1_000
  await ask(15)
  expect(reads()).toBe(30)
})

test('an instance that is served takes nothing of that: it needs no question', async () => {
  const { diagnosis, reads } = diagnosing({ served: {} })
  for (let i = 0; i < 30; i++) await diagnosis.instance(ID)
  await diagnosis.instance('srv-other')
  expect(reads()).toBe(1)
})
