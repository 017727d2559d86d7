import { expect, test } from 'vitest'
import { countStates, failure, ok, runChecks, statusOf, warning } from '../../../src/runtime/check.ts'
import type { HostCheck } from '../../../src/imdsd/checks/host-state.ts'
import { aLook } from '../../support/fixtures/look.ts'

const aCheck = (name: string, find: HostCheck['find']): HostCheck => ({ name, what: 'it is well', find })

test('results have the order of the checks, and what is not ok has its remedy', async () => {
  const results = await runChecks(
    [
      aCheck('slow', async () => {
        await Promise.resolve()
        return [ok('fine'), warning('odd', 'wait')]
      }),
      aCheck('quick', () => [failure('bad', 'repair it')]),
      aCheck('nothing', () => []),
    ],
    aLook(),
  )
  expect(results).toEqual([
    { check: 'slow', state: 'ok', text: 'fine' },
    { check: 'slow', state: 'warning', text: 'odd', remedy: 'wait' },
    { check: 'quick', state: 'failure', text: 'bad', remedy: 'repair it' },
  ])
  expect(countStates(results)).toEqual({ ok: 1, warning: 1, failure: 1 })
})

test('a check that throws has failed, and the others are run', async () => {
  const broken = aCheck('broken', () => {
    throw new Error('no such thing')
  })
  const results = await runChecks([broken, aCheck('other', () => [ok('fine')])], aLook())
  expect(results.map(({ state, text }) => `${state} ${text}`)).toEqual([
    'failure cannot be checked: Error: no such thing',
    'ok fine',
  ])
})

test('the exit status is 0, 1 with warnings and 2 with failures', () => {
  const result = (state: 'ok' | 'warning' | 'failure') => ({ state })
  expect(statusOf([])).toBe(0)
  expect(statusOf([result('ok')])).toBe(0)
  expect(statusOf([result('ok'), result('warning')])).toBe(1)
  expect(statusOf([result('failure'), result('warning')])).toBe(2)
})
