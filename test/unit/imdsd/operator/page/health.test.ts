import { expect, test } from 'vitest'
import { formatHealth } from '../../../../../src/imdsd/operator/page/health.ts'

test('what the daemon cannot check is named, with the command that can', () => {
  const text = formatHealth({
    results: [{ check: 'daemon', state: 'ok', text: 'it is ready' }],
    unchecked: ['ports', 'guests'],
  }).toString()
  expect(text).toContain('it is ready')
  expect(text).toContain('ports, guests. On this hypervisor, run <code>sudo imdsctl doctor</code>')
})
