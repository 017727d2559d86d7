import { expect, test } from 'vitest'
import type { FoundCondition } from '../../../../src/conditions/condition.ts'
import { buildReadiness, type ReadinessParts } from '../../../../src/imdsd/operator/readiness.ts'
import { VERSION } from '../../../../src/runtime/installation.ts'
import { READY } from '../../../support/fixtures/ready.ts'

const PARTS: ReadinessParts = {
  conditions: () => [],
  sync: { status: () => ({ ...READY, absent: 1, faulty: 2 }) },
  source: { description: 'redis://x' },
  view: { size: 3, contested: () => new Map([['default 10.0.0.2', ['srv-a', 'srv-b']]]), unconfirmed: () => new Map() },
  firewall: { status: () => ({ required: true, applied: true, ageSeconds: 0 }) },
  viewAgeSeconds: () => 1.23456,
}

test('readiness shows the conditions and the state of sync, the view and the firewall', () => {
  expect(buildReadiness(PARTS)).toEqual({
    ready: true,
    conditions: [],
    version: VERSION,
    store: 'redis://x',
    connected: true,
    instances: 3,
    viewAgeSeconds: 1.235,
    absent: 1,
    faulty: 2,
    contestedAddresses: 1,
    unconfirmedAddresses: 0,
    firewall: { required: true, applied: true, ageSeconds: 0 },
  })
})

test('a daemon is not ready because of some conditions, and ready with others', () => {
  const condition: FoundCondition = { code: 'a', severity: 'failure', text: 'b', remedy: 'c' }
  const readiness = (found: FoundCondition) => buildReadiness({ ...PARTS, conditions: () => [found] })
  expect(readiness(condition)).toMatchObject({ ready: true, conditions: [condition] })
  expect(readiness({ ...condition, unready: true })).toMatchObject({ ready: false })
})
