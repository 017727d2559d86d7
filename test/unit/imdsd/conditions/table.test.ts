import { expect, test } from 'vitest'
import { findConditions } from '../../../../src/conditions/condition.ts'
import type { DaemonState } from '../../../../src/imdsd/conditions/state.ts'
import { CONDITIONS } from '../../../../src/imdsd/conditions/table.ts'
import type { SyncStatus } from '../../../../src/imdsd/view/sync-state.ts'
import { SOUND } from '../../../support/fixtures/daemon-state.ts'
import { READY } from '../../../support/fixtures/ready.ts'

const DAY_MS = 86_400_000
const sync = (change: Partial<SyncStatus>) => ({ sync: { ...READY, ...change } })
const host = (change: Partial<NonNullable<DaemonState['host']>>) => ({ host: { ...SOUND.host!, ...change } })
const certificate = (fromDay: number, toDay: number) => ({
  certificate: { validFromDate: new Date(fromDay * DAY_MS), validToDate: new Date(toDay * DAY_MS) },
})
const STARTING = { resyncedAtMs: undefined, ready: false } as const
const LOST = { connected: false, disconnectReason: 'ECONNREFUSED' } as const
const listed = (...first: string[]) => ({ count: first.length, first })
const UNUSABLE = { named: 50, faulty: 50, reasons: { rejected: 50 }, cause: 'a wrong key' } as const

/** A fault -> the one condition that is found, and its text. `unready`: /readyz is 503. */
type Fault = [code: string, change: Partial<DaemonState>, text: RegExp, unready?: 'unready']
const FAULTS: Fault[] = [
  ['store-lost', sync(LOST), /^redis:\/\/x was lost 1 min ago: ECONNREFUSED; 2 instances are served from memory$/],
  [
    'store-lost',
    { ...sync({ ...LOST, ...STARTING, wasConnected: false }), instances: 0 },
    /^redis:\/\/x was not reached since the start 1 min ago: ECONNREFUSED; no instance is served$/,
    'unready',
  ],
  [
    'store-empty',
    { ...sync({ isStoreEmpty: true, absent: 2 }), absent: listed('srv-a', 'srv-b'), viewAgeSeconds: 999 },
    /^redis:\/\/x has nothing of this region; 2 instances are served from memory$/,
  ],
  [
    'store-empty',
    { ...sync({ ...STARTING, isStoreEmpty: true }), instances: 0 },
    /nothing of this region; no instance is served$/,
    'unready',
  ],
  [
    'store-read-failed',
    sync({ ...STARTING, readFailure: 'NOPERM' }),
    /^redis:\/\/x was not read completely since the start: NOPERM$/,
    'unready',
  ],
  [
    'store-read-failed',
    { ...sync({ readFailure: 'LOADING' }), viewAgeSeconds: 999, nowMs: 999_000 },
    /^redis:\/\/x was last read completely 16 min ago: LOADING$/,
  ],
  [
    'store-unusable',
    { ...sync({ storeProblem: UNUSABLE, faulty: 50 }), unserved: listed('srv-a'), outdated: listed('srv-b') },
    /^50 of 50 records .* Likely cause: a wrong key$/,
    'unready',
  ],
  ['store-behind', sync({ isStoreBehind: true }), /^Redis has lost changes/],
  ['hypervisor-duplicate', { isDuplicate: true }, /^another daemon announces itself as hv1$/],
  ['hypervisor-unnamed', { instances: 0 }, /^no record names hv1, and no instance is served$/],
  ['store-not-written', { writeFailure: 'NOPERM' }, /: NOPERM$/],
  ['store-certificate', { storeCertificateEndSeconds: (113 * DAY_MS) / 1000 }, /ends in 13 d$/],
  [
    'record-not-served',
    { unserved: listed('srv-a: /id is missing'), instances: 0 },
    /^records that cannot be used, and are not served \(1\): srv-a: \/id is missing$/,
  ],
  [
    'record-faulty',
    { outdated: { count: 12, first: ['srv-a: x', 'srv-b: y'] } },
    /^records .* last good state is served \(12\): srv-a: x; srv-b: y; \.\.\.$/,
  ],
  ['instance-absent', { absent: listed('srv-a, revision 5') }, /no longer in the store \(1\): srv-a, revision 5$/],
  [
    'address-contested',
    { contested: listed('default 10.0.0.2 by srv-a and srv-b') },
    /^addresses that several instances claim \(1\): default/,
  ],
  ['address-lost', { lostAddresses: listed('srv-a, revision 5: 10.0.0.2') }, /^instances that have lost addresses/],
  ['address-missing', { missingAddresses: ['no 10.0.0.1'] }, /^no 10\.0\.0\.1$/, 'unready'],
  [
    'network-not-served',
    { unservedNetworks: ['network blue', 'network red'] },
    /^network blue; network red$/,
    'unready',
  ],
  [
    'firewall-awaited',
    { firewallWait: 'no guest is answered', firewall: { required: true, applied: false, ageSeconds: 99 } },
    /^no guest is answered$/,
    'unready',
  ],
  [
    'firewall-not-applied',
    { firewall: { required: true, applied: false, ageSeconds: 99 }, waiting: listed('10.0.0.2 of srv-b: ...') },
    /^its rules have not matched the view for 1 min; nobody is served on 1 addresses: 10\.0\.0\.2 of srv-b/,
  ],
  [
    'firewall-not-applied',
    { firewall: { required: true, applied: false, ageSeconds: 1, failed: 'nft: no' } },
    /for 1 s \(nft: no\)$/,
  ],
  ['operators-cut-off', { operatorProblems: ['IMDS_OPERATOR_LISTEN: ...'] }, /^IMDS_OPERATOR_LISTEN/, 'unready'],
  ['descriptors', host({ openDescriptors: 60_000 }), /^60000 of 65536 file descriptors are open$/],
  ['identity-invalid', certificate(0, 98.9), /expired 1 d ago$/],
  ['identity-invalid', certificate(101.1, 300), /is not valid for another 1 d$/],
  ['identity-expires', certificate(0, 129.9), /expires in 29 d$/],
  ['state-directory', host({ directory: { kind: 'unseen', code: 'EIO' } }), /^\/var\/lib\/imds cannot be seen: EIO$/],
  ['state-directory', host({ directory: { kind: 'directory', mode: 0o40_750, size: 0 } }), /has mode 0750/],
  ['state-directory', host({ freeBytes: 1024 }), /has 1\.0 KiB left, and the journal has 1\.0 KiB$/],
  ['view-not-kept', { journal: { kind: 'lost', reason: 'ENOSPC' } }, /: ENOSPC$/],
  ['journal-not-deleted', { journal: { kind: 'not-deleted', reason: 'EROFS' } }, /: EROFS$/],
  ['journal-not-rewritten', { journal: { kind: 'not-rewritten', reason: 'ENOSPC' } }, /: ENOSPC$/],
]

test('nothing is found in a sound daemon, also after a loss of the store and while rules are applied', () => {
  const sound: readonly Partial<DaemonState>[] = [
    {},
    { viewAgeSeconds: 3600 }, // the store is connected again
    { host: undefined },
    { hypervisor: undefined, instances: 0 },
    { firewall: { required: true, applied: false, ageSeconds: 3 }, waiting: listed('10.0.0.2') },
    { firewall: { required: false, applied: false, ageSeconds: 99 } },
    { certificate: undefined },
  ]
  for (const change of sound) expect(findConditions(CONDITIONS, { ...SOUND, ...change })).toEqual([])
})

test.each<Fault>(FAULTS)('%s: with one fault exactly its condition is found', (code, change, text, unready) => {
  const row = CONDITIONS.find((one) => one.code === code)!
  expect(findConditions(CONDITIONS, { ...SOUND, ...change })).toEqual([
    {
      code,
      severity: row.severity,
      text: expect.stringMatching(text) as string,
      remedy: row.remedy,
      ...(unready !== undefined && { unready: true }),
    },
  ])
})

test('each condition is in the table of faults', () => {
  expect([...new Set(FAULTS.map(([code]) => code))].sort()).toEqual(CONDITIONS.map(({ code }) => code).sort())
})

/** Of two faults the second is what the first has caused. */
const CAUSES: Readonly<Record<string, readonly string[]>> = {
  'store-lost': ['store-empty', 'store-read-failed', 'store-unusable', 'hypervisor-unnamed', 'store-not-written'],
  'store-empty': ['hypervisor-unnamed', 'instance-absent'],
  'store-read-failed': ['hypervisor-unnamed'],
  'store-unusable': ['hypervisor-unnamed', 'record-not-served', 'record-faulty'],
  'record-not-served': ['hypervisor-unnamed'],
  'firewall-awaited': ['firewall-not-applied'],
  ...Object.fromEntries(
    ['view-not-kept', 'journal-not-deleted', 'journal-not-rewritten'].map((code) => [code, ['state-directory']]),
  ),
}

test('two faults of different parts are both found, failures first', () => {
  for (const [code, change] of FAULTS)
    for (const [other, others] of FAULTS) {
      if (Object.keys(change).some((key) => key in others)) continue // of one part
      const all = { ...SOUND, ...change, ...others }
      const found = findConditions(CONDITIONS, all)
      const hidden = [...(CAUSES[code] ?? []), ...(CAUSES[other] ?? [])]
      const expected = [code, other].filter((one) => !hidden.includes(one))
      expect({ code, other, found: found.map((one) => one.code) }).toMatchObject({
        found: expect.arrayContaining(expected) as string[],
      })
      const severities = found.map(({ severity }) => severity)
      expect(severities).toEqual(severities.toSorted())
    }
})
