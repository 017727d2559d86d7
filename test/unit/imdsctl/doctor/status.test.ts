import { expect, test } from 'vitest'
import { buildStatus, statusRows } from '../../../../src/imdsctl/doctor/status.ts'
import { formatRows, plain } from '../../../../src/runtime/terminal.ts'
import { READY } from '../../../support/fixtures/look.ts'

const sample = (atMs: number, change: Readonly<Record<string, number>>) => ({
  atMs,
  metrics: new Map(
    Object.entries({
      'imds_build_info{version="1.0.0",node="26.0.0"}': 1,
      process_start_time_seconds: 1000,
      process_resident_memory_bytes: 80 * 2 ** 20,
      process_open_fds: 30,
      process_max_fds: 65_536,
      ...change,
    }),
  ),
})
const requests = (reason: string, status: number) =>
  `imds_requests_total{route="meta-data",method="GET",status="${status}",reason="${reason}"}`
const before = sample(0, {
  [requests('served', 200)]: 100,
  [requests('over-share', 503)]: 10,
  'imds_request_duration_seconds_sum{route="meta-data"}': 1,
  'imds_request_duration_seconds_count{route="meta-data"}': 110,
  process_cpu_seconds_total: 5,
})
const after = sample(2000, {
  [requests('served', 200)]: 160,
  [requests('over-share', 503)]: 14,
  [requests('not-found', 404)]: 6,
  'imds_request_duration_seconds_sum{route="meta-data"}': 1.035,
  'imds_request_duration_seconds_count{route="meta-data"}': 180,
  process_cpu_seconds_total: 5.1,
})

test('rates are those between two looks, with refusals by reason', () => {
  const status = buildStatus(READY, before, after, 8200)
  expect(status).toMatchObject({
    version: '1.0.0',
    uptimeSeconds: 7200,
    requestsPerSecond: 35,
    refusalsPerSecond: 5,
    refusals: { 'not-found': 3, 'over-share': 2 },
    droppedConnectionsPerSecond: 0,
  })
  expect(status.meanMs).toBeCloseTo(0.5)
  expect(status.cpuPercent).toBeCloseTo(5)
  expect(formatRows(statusRows(status), undefined, plain)).toEqual([
    'imdsd      1.0.0, ready, started 2 h ago',
    'store      redis://10.0.0.1, connected, compared 1 s ago',
    'instances  1; faulty 0, absent 0, contested addresses 0',
    'requests   35.0/s, refused 5.0/s (not-found 3.0/s, over-share 2.0/s), 0.50 ms each; dropped connections 0.0/s',
    'firewall   off',
    'process    80 MiB, 5.0 % of a CPU, 30 of 65536 descriptors',
  ])
})

test('a daemon that was started between two looks has no rates', () => {
  const restarted = { ...before, metrics: new Map([...before.metrics, ['process_start_time_seconds', 2000]]) }
  expect(buildStatus(READY, after, restarted, 8200)).toMatchObject({ requestsPerSecond: 0, meanMs: undefined })
})
