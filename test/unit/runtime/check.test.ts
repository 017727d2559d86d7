import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { failure, ok, printChecks, runChecks, warning } from '../../../src/runtime/check.ts'
import { Output } from '../../../src/runtime/output.ts'
import type { DoctorCheck } from '../../../src/imdsctl/doctor/hypervisor-state.ts'
import { aLook } from '../../support/fixtures/look.ts'

const aCheck = (code: string, run: DoctorCheck['run']): DoctorCheck => ({ code, run })

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
    { code: 'slow', severity: 'ok', text: 'fine' },
    { code: 'slow', severity: 'warning', text: 'odd', remedy: 'wait' },
    { code: 'quick', severity: 'failure', text: 'bad', remedy: 'repair it' },
  ])
})

test('a check that throws has failed, and the others are run', async () => {
  const broken = aCheck('broken', () => {
    throw new Error('no such thing')
  })
  const results = await runChecks([broken, aCheck('other', () => [ok('fine')])], aLook())
  expect(results.map(({ severity, text }) => `${severity} ${text}`)).toEqual([
    'failure cannot be checked: Error: no such thing',
    'ok fine',
  ])
})

test('the exit status is 0, 1 with warnings and 2 with failures, also of results that are not printed', async () => {
  const out = new PassThrough()
  const output = new Output('imdsctl', out, new PassThrough(), () => undefined)
  const [fine, odd, bad] = [ok('fine'), warning('odd', 'wait'), failure('bad', 'repair it')].map((finding) => ({
    code: 'a',
    ...finding,
  }))
  expect(printChecks(output, [])).toBe(0)
  expect(printChecks(output, [fine!])).toBe(0)
  expect(printChecks(output, [fine!, odd!])).toBe(1)
  expect(printChecks(output, [bad!, odd!, fine!, fine!], [odd!], [['store', 'connected']])).toBe(2)
  out.end()
  expect((await out.toArray()).join('').split('\n').slice(-4)).toEqual([
    'store  connected',
    'warning  a  odd. Remedy: wait',
    '2 ok, 1 warning, 1 failure',
    '',
  ])
})
