import { expect, test } from 'vitest'
import { store, storeInUse } from '../../../../src/imdsd/checks/checks-of-store.ts'
import { linesOf, readinessOf, settingsOf } from '../../../support/fixtures/look.ts'

test('problems of the store are failures, and its warnings are warnings', async () => {
  const probe = {
    findings: ['connected'],
    warnings: [{ text: 'the region is not initialised', remedy: 'publish' }],
    problems: [{ text: 'denied', remedy: 'allow it' }],
  }
  expect(await linesOf(store, { store: () => Promise.resolve(probe) })).toEqual([
    'failure denied',
    'warning the region is not initialised',
    'ok connected',
  ])
  expect(await linesOf(store, { store: () => Promise.resolve(undefined) })).toEqual([])
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
