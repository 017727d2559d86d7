import { expect, test } from 'vitest'
import { formatFinding } from '../../../../src/runtime/check.ts'
import { configuration, daemon, version } from '../../../../src/imdsctl/doctor/checks-of-daemon.ts'
import { aLook, linesOf, readinessOf, settingsOf, SILENT } from '../../../support/fixtures/look.ts'

test('each fault of the configuration is a failure, and each unknown variable a warning', async () => {
  expect(await linesOf(configuration, {})).toEqual(['ok it is valid'])
  const settings = settingsOf(
    {},
    {
      faults: [{ variable: 'IMDS_REGION', message: 'is not set' }],
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
  const found = await configuration.run(aLook({ settings }))
  expect(found.map(formatFinding)).toEqual([
    'variables of this shell replace those of imds.service: IMDS_STORE. Remedy: unset them, or add --service',
    'IMDS_STORE is not a URL. Remedy: correct it in this shell',
  ])
})

test('a daemon of another version than imdsctl is a warning', async () => {
  expect(await linesOf(version, {})).toEqual(['ok imdsd and imdsctl are 1.0.0'])
  expect(await linesOf(version, { version: '1.1.0' })).toEqual(['warning imdsd is 1.0.0, and imdsctl is 1.1.0'])
})

test('a daemon that does not answer, or uses another store than the configuration has, is a failure', async () => {
  expect(await linesOf(daemon, {})).toEqual(['ok it answers, is ready and serves 1 instance'])
  expect(await linesOf(daemon, { readiness: SILENT })).toEqual(['failure it does not answer'])
  expect(await linesOf(daemon, { readiness: readinessOf({ store: 'redis://10.0.0.9' }) })).toEqual([
    'failure imdsd uses redis://10.0.0.9, and the configuration has redis://10.0.0.1',
  ])
  expect(await version.run(aLook({ readiness: SILENT }))).toEqual([])
})
