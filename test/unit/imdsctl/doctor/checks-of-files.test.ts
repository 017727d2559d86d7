import { expect, test } from 'vitest'
import { keyFiles } from '../../../../src/imdsctl/doctor/checks-of-files.ts'
import type { DoctorState } from '../../../../src/imdsctl/doctor/hypervisor-state.ts'
import { linesOf, settingsOf } from '../../../support/fixtures/look.ts'

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
