import { expect, test } from 'vitest'
import { formatFindings } from '../../../src/pages/findings.ts'

test('a finding has its state, and its remedy if it has one', () => {
  const text = formatFindings([
    { check: 'daemon', state: 'ok', text: 'it is ready' },
    { check: 'records', state: 'warning', text: '<2> records are faulty', remedy: 'see the journal' },
  ]).toString()
  expect(text).toContain('<b class="ok">ok</b></td><td data-of="finding"><span>it is ready</span>')
  expect(text).toContain('&lt;2&gt; records are faulty<br><span class="soft">Remedy: see the journal</span>')
})
