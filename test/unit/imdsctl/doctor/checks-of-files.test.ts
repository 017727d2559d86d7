import { expect, test } from 'vitest'
import { journal, keyFiles } from '../../../../src/imdsctl/doctor/checks-of-files.ts'
import type { DoctorState } from '../../../../src/imdsctl/doctor/hypervisor-state.ts'
import { linesOf, readinessOf, settingsOf } from '../../../support/fixtures/look.ts'

/** Files with a mode each; others are closed to other users. */
const modes =
  (changed: Readonly<Record<string, number>>): DoctorState['file'] =>
  (path) => ({ kind: 'file', mode: changed[path] ?? 0o600, size: 1024 })

test('a file of secrets that others can read or write is a warning with its remedy', async () => {
  const settings = settingsOf({ IMDS_REDIS_PASSWORD_FILE: '/etc/imds/password' })
  expect(await linesOf(keyFiles, { settings })).toEqual(['ok 2 files of secrets are closed to other users'])
  expect(await linesOf(keyFiles, { settings, file: modes({ '/etc/imds/password': 0o640 }) })).toHaveLength(1)
  expect(
    await linesOf(keyFiles, {
      settings,
      file: modes({ '/etc/imds/password': 0o644, '/var/lib/imds/token-key': 0o620 }),
    }),
  ).toEqual([
    'warning /etc/imds/password has mode 0644: every user can read it',
    'warning /var/lib/imds/token-key has mode 0620: other users can replace its content',
  ])
  expect(await linesOf(keyFiles, { file: () => ({ kind: 'unseen', code: 'ENOENT' }) })).toEqual([])
})

test('a journal that would not be served, or is missing, is a warning', async () => {
  const of = (state: Awaited<ReturnType<DoctorState['journal']>>) => ({ journal: () => Promise.resolve(state) })
  const DAY_MS = 86_400_000
  expect(await linesOf(journal, {})).toEqual(['ok 1 instance, compared with the store 1 s ago'])
  expect(await linesOf(journal, of({ kind: 'read', ageMs: 3 * DAY_MS, instances: 1 }))).toEqual([
    'warning it is stale, and not served if imdsd starts without the store: 1 instance, compared with the store 3 d ago',
  ])
  expect(await linesOf(journal, of({ kind: 'read', ageMs: -DAY_MS, instances: 1 }))).toEqual([
    'warning it is from the future: the clock was set back',
  ])
  expect(await linesOf(journal, of({ kind: 'read', ageMs: -3 * DAY_MS, instances: 1 }))).toEqual([
    'warning it is from the future: the clock was set back, and it is not served if imdsd starts without the store',
  ])
  expect(await linesOf(journal, of({ kind: 'unreadable', reason: 'it is torn' }))).toEqual([
    'warning it is not served if imdsd starts without the store: it is torn',
  ])
  expect(await linesOf(journal, of({ kind: 'none' }))).toEqual([
    'warning there is none: guests get 503 if imdsd starts without the store',
  ])
  expect(await linesOf(journal, { ...of({ kind: 'none' }), freeBytes: () => 1024 })).toEqual([
    'warning there is none, and no room for one: guests get 503 if imdsd starts without the store',
  ])
  const ofAnother = { kind: 'unreadable', reason: 'it is of hypervisor hv1' } as const // this one was renamed
  for (const found of [{ kind: 'none' } as const, ofAnother])
    expect(await linesOf(journal, { ...of(found), readiness: readinessOf({ instances: 0 }) })).toEqual([
      'ok there is none, and imdsd serves no instance',
    ])
})
