import { expect, test } from 'vitest'
import { formatConditions, worstOf } from '../../../src/conditions/page.ts'

const WARNING = { code: 'clock', severity: 'warning', text: 'it is <wrong>', remedy: 'set it' } as const

test('a condition is shown with its severity and remedy, escaped; without any, nothing is wrong', () => {
  const page = formatConditions([WARNING]).toString()
  for (const text of ['clock', '<b class="warning">warning</b>', 'it is &lt;wrong&gt;', 'Remedy: set it'])
    expect(page).toContain(text)
  expect(formatConditions([]).toString()).toContain('Nothing is wrong.')
})

test('the state of a program is that of its most serious condition', () => {
  expect([worstOf([]), worstOf([WARNING]), worstOf([WARNING, { severity: 'failure' }])]).toEqual([
    'ok',
    'warning',
    'failure',
  ])
})
