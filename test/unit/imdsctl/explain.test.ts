import { expect, test } from 'vitest'
import { formatExplanation } from '../../../src/imdsctl/explain.ts'
import { failure, ok } from '../../../src/runtime/check.ts'
import type { Step } from '../../../src/imdsctl/doctor/guest-path.ts'
import type { Explanation } from '../../../src/imdsd/operator/documents.ts'
import { formatRows, plain, type Paint } from '../../../src/runtime/terminal.ts'

const NOW = Date.parse('2026-11-23T10:00:00Z')
const EXPLANATION: Explanation = {
  network: 'default',
  address: '10.0.0.2',
  answer: 'metadata',
  status: 200,
  because: "it is srv-a's",
  instance: { id: 'srv-a', revision: 7, hypervisors: ['hv1'] },
  sessionTokens: 'required',
  userData: '8 bytes',
  hopLimit: { limit: 1, enforced: true },
  packets: { admitted: 120, 'unknown-peers': 3, strays: 0 },
  requests: [
    {
      topic: 'user-data',
      at: '2026-11-23T09:59:57Z',
      status: 403,
      reason: 'forwarded',
      userAgent: 'evil "agent"',
      count: 2,
    },
    { topic: 'token', at: '2026-11-23T09:59:00Z', status: 200, reason: 'served', count: 1 },
  ],
}
const PATH: Step[] = [
  { name: 'link', address: undefined, finding: ok('tap-int-a is up') },
  { name: 'route', address: '10.0.0.2', finding: failure('there is no route to 10.0.0.2', 'add one') },
]
function shown(explanation: Explanation, path: readonly Step[], paint: Paint = plain): string[] {
  const { title, rows } = formatExplanation(explanation, path, NOW)
  return [...formatRows([[title]], undefined, paint), ...formatRows(rows, undefined, paint)]
}

test('an explanation has the answer, the instance, the path to it and what its guest has asked for', () => {
  expect(shown(EXPLANATION, PATH)).toEqual([
    "10.0.0.2 on network default: metadata (200), since it is srv-a's",
    'instance        srv-a, revision 7, on hv1',
    'session tokens  required',
    'user-data       8 bytes',
    'hop limit       1, enforced by the firewall',
    'link            tap-int-a is up',
    'route           there is no route to 10.0.0.2. Remedy: add one',
    'packets         admitted 120; dropped unknown-peers 3 (all guests of the hypervisor)',
    'request         user-data, 3 s ago: 403 forwarded; 2 in all; "evil \\"agent\\""',
    'request         token, 1 min ago: 200 served; 1 in all',
  ])
})

test('what keeps the guest from its metadata is red', () => {
  const held = { ...EXPLANATION, answer: 'unknown-peer', status: 503, firewall: 'no rules', store: 'it was lost' }
  const red = shown(held, PATH, (style, text) => (style === 'red' ? `RED ${text}` : text)).filter((line) =>
    line.includes('RED'),
  )
  expect(red.map((line) => line.split(' ')[0])).toEqual(['RED', 'route', 'firewall', 'store'])
})

test('an address of nobody has no path', () => {
  const { network, address, because } = EXPLANATION
  expect(shown({ network, address, answer: 'no-listener', because }, [])).toEqual([
    "10.0.0.2 on network default: no-listener, since it is srv-a's",
  ])
})
