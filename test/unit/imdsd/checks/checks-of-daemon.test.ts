import { expect, test } from 'vitest'
import { formatFinding } from '../../../../src/runtime/check.ts'
import { configuration, daemon, descriptors, records, version } from '../../../../src/imdsd/checks/checks-of-daemon.ts'
import { aLook, linesOf, metricsOf, readinessOf, settingsOf, SILENT } from '../../../support/fixtures/look.ts'

test('each fault of the configuration is a failure, and each unknown variable a warning', async () => {
  expect(await linesOf(configuration, {})).toEqual(['ok it is valid'])
  const settings = settingsOf(
    {},
    {
      faults: [
        { variable: 'IMDS_REGION', message: 'is not set' },
        { variable: 'IMDS_STATE_DIR', message: 'is checked elsewhere' },
      ],
      unknown: ['IMDS_TYPO'],
    },
  )
  expect(await linesOf(configuration, { settings })).toEqual([
    'failure IMDS_REGION is not set',
    'warning IMDS_TYPO is no variable of imdsd, and is ignored',
  ])
})

test('the first finding names the variables of the shell that replace those of the service', async () => {
  const faults = [{ variable: 'IMDS_STORE', message: 'is not a URL' }] as const
  const settings = settingsOf({}, { replaced: ['IMDS_STORE'], faults })
  const found = await configuration.find(aLook({ settings }))
  expect(found.map(formatFinding)).toEqual([
    'variables of this shell replace those of imds.service: IMDS_STORE. Remedy: unset them, or add --service',
    'IMDS_STORE is not a URL. Remedy: correct it in this shell',
  ])
})

test('a daemon that does not answer, or is not ready, is a failure with the reason', async () => {
  expect(await linesOf(daemon, {})).toEqual(['ok it is ready'])
  expect(await linesOf(daemon, { readiness: SILENT })).toEqual(['failure it does not answer'])
  expect(await linesOf(daemon, { readiness: readinessOf({ ready: false, problem: 'no store' }) })).toEqual([
    'failure no store',
  ])
})

test('a daemon of another version than imdsctl is a warning', async () => {
  expect(await linesOf(version, {})).toEqual(['ok imdsd and imdsctl are 1.0.0'])
  expect(await linesOf(version, { version: '1.1.0' })).toEqual(['warning imdsd is 1.0.0, and imdsctl is 1.1.0'])
})

test('a daemon with few descriptors left is a failure, and one that dropped connections has a note', async () => {
  const drops = 'imds_connections_dropped_total{reason="descriptors"}'
  expect(await linesOf(descriptors, {})).toEqual(['ok 30 of 65536 are open'])
  expect(await linesOf(descriptors, { metrics: metricsOf({ process_max_fds: 32 }) })).toEqual([
    'failure 30 of 32 are open',
  ])
  expect(await linesOf(descriptors, { metrics: metricsOf({ [drops]: 3 }) })).toEqual([
    'ok 30 of 65536 are open; 3 connections of guests were dropped since the start to free some',
  ])
})

test('faulty, unconfirmed and contested records are warnings, and so is a hypervisor that no record names', async () => {
  expect(await linesOf(records, {})).toEqual(['ok it serves 1 instance'])
  const readiness = readinessOf({
    faulty: 2,
    faultyRecords: ['srv-a: a', 'srv-b: b', 'srv-c: c', 'srv-d: d'],
    unconfirmed: 3,
    unconfirmedInstances: ['srv-e, revision 5'],
    contestedAddresses: 4,
    contested: ['default 10.0.0.2: srv-a, srv-b'],
    hint: 'no record names hv1',
  })
  expect(await linesOf(records, { readiness })).toEqual([
    'warning 2 records cannot be used; srv-a: a; srv-b: b; srv-c: c',
    'warning 3 instances that the store no longer has: served nevertheless; srv-e, revision 5',
    'warning 4 addresses claimed by several instances; default 10.0.0.2: srv-a, srv-b',
    'warning no record names hv1',
  ])
  const emptied = readinessOf({ unconfirmed: 1, hint: 'no record names hv1, so none ...' })
  expect(await linesOf(records, { readiness: emptied })).toEqual([
    'warning 1 instance that the store no longer has: served nevertheless',
  ])
})

test('without an answer of the daemon its other checks find nothing', async () => {
  const look = aLook({ readiness: SILENT, metrics: SILENT })
  for (const check of [version, descriptors, records]) expect(await check.find(look)).toEqual([])
})
