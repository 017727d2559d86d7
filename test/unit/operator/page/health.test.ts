import { expect, test } from 'vitest'
import { formatHealth } from '../../../../src/operator/page/health.ts'

test('a finding has its state and its remedy, and what the daemon cannot check names the command that can', () => {
  const text = formatHealth({
    results: [
      { check: 'daemon', state: 'ok', text: 'it is ready' },
      { check: 'records', state: 'warning', text: '<2> records are faulty', remedy: 'see the journal' },
    ],
    unchecked: ['ports', 'guests'],
  }).toString()
  expect(text).toContain('<b class="ok">ok</b>')
  expect(text).toContain('&lt;2&gt; records are faulty<br><span class="soft">Remedy: see the journal</span>')
  expect(text).toContain('ports, guests. On this hypervisor, run <code>sudo imdsctl doctor</code>')
})
