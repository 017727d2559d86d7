import { expect, test } from 'vitest'
import { CHECKS, NOT_OF_DAEMON, OF_DAEMON } from '../../../../src/imdsd/checks/checks.ts'
import { runChecks } from '../../../../src/imdsd/checks/check.ts'
import { aLook, settingsOf, SILENT } from '../../../support/fixtures/look.ts'

test('each check has its own name, of a width that fits its column', () => {
  const names = CHECKS.map(({ name }) => name)
  expect(new Set(names).size).toBe(names.length)
  expect(names.filter((name) => !/^[a-z][a-z-]{2,14}$/.test(name))).toEqual([])
})

test('no check throws where nothing can be seen', async () => {
  const results = await runChecks(
    CHECKS,
    aLook({
      settings: settingsOf({}, { config: undefined }),
      file: () => ({ kind: 'unseen', code: 'EACCES' }),
      freeBytes: () => undefined,
      readiness: SILENT,
      metrics: SILENT,
      firewall: SILENT,
      store: () => Promise.resolve(undefined),
      snapshot: () => Promise.resolve({ kind: 'unreadable', reason: 'EACCES' }),
    }),
  )
  expect(results.filter(({ text }) => text.startsWith('cannot be checked'))).toEqual([])
  expect(results.map(({ check }) => check)).toContain('daemon')
})

test('each check is run by the daemon for its status page, or named there as one that it cannot run', () => {
  const names = OF_DAEMON.map(({ name }) => name)
  expect(
    CHECKS.map(({ name }) => name).filter((name) => !names.includes(name) && !NOT_OF_DAEMON.includes(name)),
  ).toEqual([])
  expect(NOT_OF_DAEMON).toContain('ports')
})
