import { expect, test } from 'vitest'
import { identity, journal, keyFiles, stateDirectory } from '../../../../src/imdsd/checks/checks-of-files.ts'
import type { DoctorState } from '../../../../src/imdsd/checks/hypervisor-state.ts'
import { linesOf, metricsOf, readinessOf, settingsOf } from '../../../support/fixtures/look.ts'

/** Files with a mode each; others are closed to other users. */
const modes =
  (changed: Readonly<Record<string, number>>): DoctorState['file'] =>
  (path) => ({ kind: 'file', mode: changed[path] ?? 0o600, size: 1024 })

test('a file of secrets that others can read or write is a failure with its remedy', async () => {
  const settings = settingsOf({ IMDS_REDIS_PASSWORD_FILE: '/etc/imds/password' })
  expect(await linesOf(keyFiles, { settings })).toEqual(['ok 2 files of secrets are closed to other users'])
  expect(await linesOf(keyFiles, { settings, file: modes({ '/etc/imds/password': 0o640 }) })).toHaveLength(1)
  expect(
    await linesOf(keyFiles, {
      settings,
      file: modes({ '/etc/imds/password': 0o644, '/var/lib/imds/token-key': 0o620 }),
    }),
  ).toEqual([
    'failure /etc/imds/password has mode 0644: every user can read it',
    'failure /var/lib/imds/token-key has mode 0620: other users can replace its content',
  ])
  expect(await linesOf(keyFiles, { file: () => ({ kind: 'unseen', code: 'ENOENT' }) })).toEqual([])
})

test('a certificate that expires within 30 days is a warning, and one that is not valid a failure', async () => {
  const inDays = (days: number) => new Date(Date.now() + days * 86_400_000)
  const of = (from: number, to: number) => {
    const { config } = settingsOf()
    const certificate = { validFromDate: inDays(from), validToDate: inDays(to) }
    return linesOf(identity, { settings: settingsOf({}, { config: { ...config!, identity: { certificate } } }) })
  }
  expect(await linesOf(identity, {})).toEqual([])
  expect(await of(-1, 30.1)).toEqual(['ok the certificate expires in 30 d'])
  expect(await of(-1, 29.9)).toEqual(['warning the certificate expires in 29 d'])
  expect(await of(-9, -1.1)).toEqual(['failure the certificate expired 1 d ago: verifiers may reject documents'])
  expect(await of(1.1, 99)).toEqual([
    'failure the certificate is not valid for another 1 d: verifiers may reject documents',
  ])
})

test('a state directory that is open to others, full or not writable is named', async () => {
  expect(await linesOf(stateDirectory, {})).toEqual(['ok /var/lib/imds can be written, with 1.0 GiB left'])
  expect(await linesOf(stateDirectory, { file: modes({ '/var/lib/imds': 0o750 }) })).toEqual([
    'failure /var/lib/imds has mode 0750: other users can enter it',
  ])
  expect(await linesOf(stateDirectory, { freeBytes: () => 1024 })).toEqual([
    'warning /var/lib/imds has 1.0 KiB left, and the journal has 1.0 KiB',
  ])
  expect(await linesOf(stateDirectory, { freeBytes: () => 4 * 2 ** 20 })).toEqual([
    'warning /var/lib/imds has 4.0 MiB left, and the journal has 1.0 KiB',
  ])
  const faults = [{ variable: 'IMDS_STATE_DIR', message: 'user imds cannot write /var/lib/imds: EROFS' }] as const
  expect(await linesOf(stateDirectory, { settings: settingsOf({}, { faults }) })).toEqual([
    'failure IMDS_STATE_DIR: user imds cannot write /var/lib/imds: EROFS',
  ])
  expect(await linesOf(stateDirectory, { file: () => ({ kind: 'unseen', code: 'ENOENT' }) })).toEqual([
    'warning /var/lib/imds cannot be seen: ENOENT',
  ])
})

test('writes that fail now are a warning, and those that failed before are a note', async () => {
  const failed = { 'imds_journal_writes_total{result="failed"}': 1 }
  expect(await linesOf(stateDirectory, { metrics: metricsOf({ ...failed, imds_state_writes_failing: 1 }) })).toEqual([
    'warning writes fail: since its start imdsd could not write 1 change and rewrite its journal 0 times',
  ])
  expect(await linesOf(stateDirectory, { metrics: metricsOf({ ...failed, imds_state_writes_failing: 0 }) })).toEqual([
    'ok /var/lib/imds can be written, with 1.0 GiB left; since its start imdsd could not write 1 change and rewrite its journal 0 times',
  ])
})

test('a journal that would not be served is a failure, and a missing one a warning', async () => {
  const of = (state: Awaited<ReturnType<DoctorState['journal']>>) => ({ journal: () => Promise.resolve(state) })
  const DAY_MS = 86_400_000
  expect(await linesOf(journal, {})).toEqual(['ok 1 instance, compared with the store 1 s ago'])
  expect(await linesOf(journal, of({ kind: 'read', ageMs: 3 * DAY_MS, instances: 1 }))).toEqual([
    'failure it is stale, and not served if imdsd starts without the store: 1 instance, compared with the store 3 d ago',
  ])
  expect(await linesOf(journal, of({ kind: 'read', ageMs: -DAY_MS, instances: 1 }))).toEqual([
    'warning it is from the future: the clock was set back',
  ])
  expect(await linesOf(journal, of({ kind: 'read', ageMs: -3 * DAY_MS, instances: 1 }))).toEqual([
    'failure it is from the future: the clock was set back, and it is not served if imdsd starts without the store',
  ])
  expect(await linesOf(journal, of({ kind: 'unreadable', reason: 'it is torn' }))).toEqual([
    'failure it is not served if imdsd starts without the store: it is torn',
  ])
  expect(await linesOf(journal, of({ kind: 'none' }))).toEqual([
    'warning there is none: guests get 503 if imdsd starts without the store',
  ])
  expect(await linesOf(journal, { ...of({ kind: 'none' }), freeBytes: () => 1024 })).toEqual([
    'failure there is none, and no room for one: guests get 503 if imdsd starts without the store',
  ])
  const ofAnother = { kind: 'unreadable', reason: 'it is of hypervisor hv1' } as const // this one was renamed
  for (const found of [{ kind: 'none' } as const, ofAnother])
    expect(await linesOf(journal, { ...of(found), readiness: readinessOf({ instances: 0 }) })).toEqual([
      'ok there is none, and imdsd serves no instance',
    ])
})
