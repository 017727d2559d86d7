import { expect, test } from 'vitest'
import { store, storeInUse } from '../../../../src/imdsd/checks/checks-of-store.ts'
import { failure, ok } from '../../../../src/runtime/check.ts'
import { linesOf, readinessOf, settingsOf } from '../../../support/fixtures/look.ts'

test('the check of the store finds what its probe finds', async () => {
  const found = [failure('denied', 'allow it'), ok('connected')]
  expect(await linesOf(store, { store: () => Promise.resolve(found) })).toEqual(['failure denied', 'ok connected'])
})

test('a daemon without its store, or with another one than the configuration has, is a failure', async () => {
  expect(await linesOf(storeInUse, {})).toEqual([
    'ok imdsd is connected to redis://10.0.0.1; the last full comparison was 1 s ago',
  ])
  expect(await linesOf(storeInUse, { readiness: readinessOf({ connected: false }) })).toEqual([
    'failure imdsd is not connected to redis://10.0.0.1: guests are served from memory; the last full comparison was 1 s ago',
  ])
  expect(await linesOf(storeInUse, { settings: settingsOf({ IMDS_STORE: 'redis://10.0.0.2' }) })).toEqual([
    'failure imdsd uses redis://10.0.0.1, and the configuration has redis://10.0.0.2',
  ])
  expect(await linesOf(storeInUse, { settings: settingsOf({ IMDS_STORE: 'file:/records' }) })).toEqual([
    'failure imdsd uses redis://10.0.0.1, and the configuration has file:/records',
  ])
})

test('a daemon that has not compared its view for several intervals is a warning', async () => {
  expect(await linesOf(storeInUse, { readiness: readinessOf({ viewAgeSeconds: 189 }) })).toEqual([
    'ok imdsd is connected to redis://10.0.0.1; the last full comparison was 189 s ago',
  ])
  expect(await linesOf(storeInUse, { readiness: readinessOf({ viewAgeSeconds: 191 }) })).toEqual([
    'warning imdsd is connected to redis://10.0.0.1, and the last full comparison was 191 s ago',
  ])
})
