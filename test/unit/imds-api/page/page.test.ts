import { expect, test } from 'vitest'
import { formatRegionPage } from '../../../../src/imds-api/page/page.ts'
import type { RegionState } from '../../../../src/imds-api/conditions/region-state.ts'

const HOSTILE = '"><script>alert(1)</script>'
const NOW = Date.parse('2026-11-23T12:00:00Z')

function aState(hypervisors: number): RegionState {
  return {
    region: 'gb1',
    hypervisors: {
      hypervisors: Array.from({ length: hypervisors }, (_, i) => ({
        name: `hv${String(i).padStart(3, '0')}`,
        zone: 'gb1-a',
        ram: 65_536,
        free: 1024,
        servers: 3,
        drained_at: i === 0 ? new Date(NOW - 7_200_000) : null,
        announced: { name: '', version: HOSTILE, instances: 3, lagSeconds: 2, seenAt: HOSTILE },
      })),
      storeProblem: HOSTILE,
    },
    outbox: { length: 1, age: 1, faulty: 60 },
    refused: [{ id: 'srv-a', account: 'acc-a', fault: HOSTILE }],
    pools: [{ kind: 'public_ipv4', range: '203.0.113.0/24', size: 254, used: 127 }],
    actions: { waiting: 0, age: 0, unfetched: 0 },
    invitations: { unsent: 2, fault: HOSTILE },
  }
}

const show = (readRegion: () => Promise<RegionState>, search = '', page = 1) =>
  formatRegionPage(
    {
      version: '1.0.0',
      readRegion,
      publishing: { problem: { reason: HOSTILE, isDatabaseAway: false }, isStoreBehind: false },
      certificates: () => [],
      nowMs: () => NOW,
    },
    { search, page },
  )

test('it has hypervisors, refused servers and pools, and nothing that anybody wrote is HTML', async () => {
  const text = await show(() => Promise.resolve(aState(1)))
  expect(text).toContain('<title>failure: imds-api of gb1</title>')
  expect([...text.matchAll(/<h2>([^<]*)/g)].map(([, heading]) => heading)).toEqual([
    'Health',
    'Hypervisors',
    'Servers that the store refuses',
    'Pools',
  ])
  expect(text).not.toContain('<script')
  expect(text).toMatch(/>1024<.*>65536<.*>2 h ago<.*>at an unknown time</)
  expect(text).toMatch(/>203\.0\.113\.0\/24<.*>public ipv4<.*>127<.*>254<.*>50\.0 %</)
  expect(text).toContain('And 59 more.')
})

test('a page has 50 hypervisors of 500, at most 60 KB, and a search finds names and zones', async () => {
  const state = () => Promise.resolve(aState(500))
  const names = (text: string) => [...text.matchAll(/data-of="hypervisor">([^<]*)/g)].map(([, name]) => name)
  const text = await show(state)
  expect(names(text)).toHaveLength(50)
  expect(Buffer.byteLength(text)).toBeLessThan(60 * 1024)
  expect(names(await show(state, 'HV49', 1))).toHaveLength(10)
  expect(names(await show(state, HOSTILE))).toEqual([])
})

test('while the database does not answer, the page says so', async () => {
  const text = await show(() => Promise.reject(new Error(HOSTILE)))
  expect(text).toContain('<title>failure: imds-api</title>')
  expect(text).toContain('the database does not answer: &quot;')
  expect(text).not.toContain('<script')
})
