import { expect, test } from 'vitest'
import { formatConditions } from '../../../src/conditions/page.ts'

const WARNING = { code: 'clock', severity: 'warning', text: 'it is <wrong>', remedy: 'set it' } as const

test('a condition is shown with its severity and remedy, escaped; without any, nothing is wrong', () => {
  const page = formatConditions([WARNING]).toString()
  for (const text of ['clock', '<b class="warning">warning</b>', 'it is &lt;wrong&gt;', 'Remedy: set it'])
    expect(page).toContain(text)
  expect(formatConditions([]).toString()).toContain('Nothing is wrong.')
})
