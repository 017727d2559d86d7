import { expect, test } from 'vitest'
import { RequestMeter } from '../../../src/imdsd/guest/meter.ts'
import { Metrics, type MetricsSources } from '../../../src/imdsd/metrics.ts'
import { VERSION } from '../../../src/runtime/installation.ts'
import { READY } from '../../support/fixtures/ready.ts'

const STATUS = { ...READY, resyncTookMs: 1_500, absent: 2, faulty: 3 }

/** The metrics of a daemon, and a scrape of them: series -> value. */
function aDaemon(change: Partial<MetricsSources> = {}) {
  const meter = new RequestMeter()
  const metrics = new Metrics()
  metrics.setSources({
    view: { size: 4 },
    meter,
    held: { size: 3 },
    sync: { status: () => STATUS },
    firewall: { packets: () => undefined },
    viewAgeSeconds: () => 6,
    conditions: () => [],
    ...change,
  })
  const scrape = async () =>
    new Map(
      (await metrics.registry.metrics())
        .split('\n')
        .filter((line) => line.startsWith('imds_'))
        .map((line) => {
          const space = line.lastIndexOf(' ')
          return [line.slice(0, space), Number(line.slice(space + 1))] as const
        }),
    )
  return { metrics, meter, scrape }
}

test('each metric is of imds or of the process, has a help text, and a counter ends in _total', async () => {
  const declared = await aDaemon().metrics.registry.getMetricsAsJSON()
  expect(declared.length).toBeGreaterThan(30)
  expect(declared.filter(({ name }) => !/^(imds|process|nodejs)_/.test(name)).map(({ name }) => name)).toEqual([])
  const ours = declared
    .filter(({ name }) => name.startsWith('imds_'))
    .map(({ name, help, type }) => ({ name, isEnded: help.endsWith('.'), type: String(type) }))
  expect(ours.filter(({ isEnded }) => !isEnded)).toEqual([])
  expect(ours.filter(({ name, type }) => name.endsWith('_total') !== (type === 'counter'))).toEqual([])
})

test('the version of imds and of Node is a metric from the start, without anything to read from', async () => {
  expect(await new Metrics().registry.metrics()).toContain(
    `imds_build_info{version="${VERSION}",node="${process.versions.node}"} 1`,
  )
})

test('every series of a counter is there at 0 from the start, so that its first increase shows as a rate', async () => {
  const text = await new Metrics().registry.metrics()
  for (const series of [
    'imds_notices_total',
    ...['completed', 'failed', 'uninitialised'].map((result) => `imds_resyncs_total{result="${result}"}`),
    ...['found', 'unknown', 'failed', 'skipped'].map((result) => `imds_peer_lookups_total{result="${result}"}`),
    ...['written', 'failed'].map((result) => `imds_journal_rewrites_total{result="${result}"}`),
    ...['unreadable', 'rejected', 'record', 'id', 'user-data', 'order'].map(
      (reason) => `imds_record_faults_total{reason="${reason}"}`,
    ),
  ])
    expect(text.split('\n')).toContain(`${series} 0`)
})

test('gauges are read when they are scraped', async () => {
  const held = { size: 3 }
  const { scrape } = aDaemon({ held })
  expect(Object.fromEntries(await scrape())).toMatchObject({
    imds_view_instances: 4,
    imds_held_requests: 3,
    imds_view_age_seconds: 6,
    imds_resync_duration_seconds: 1.5,
    imds_view_absent_instances: 2,
    imds_view_faulty_records: 3,
    'imds_condition{code="store-lost",severity="failure"}': 0,
  })
  held.size = 9
  expect((await scrape()).get('imds_held_requests')).toBe(9)
})

test('each condition is a series, which is 1 while it is found', async () => {
  const conditions = () => [{ code: 'store-lost', severity: 'failure', text: '', remedy: '' } as const]
  const found = await aDaemon({ conditions }).scrape()
  expect([...found].filter(([name, value]) => name.startsWith('imds_condition') && value === 1)).toEqual([
    ['imds_condition{code="store-lost",severity="failure"}', 1],
  ])
})

test('each scrape returns the counts of the meter, without adding them twice', async () => {
  const { meter, scrape } = aDaemon()
  const served = 'imds_requests_total{route="/{version}/meta-data",method="GET",status="200",reason="served"}'
  for (let i = 0; i < 3; i++) meter.countResponse('/{version}/meta-data', 'GET', 'served', 0.001)
  meter.countDrops('stalled', 2)
  meter.countSession('token')
  meter.countForwarded()
  for (let i = 0; i < 2; i++) {
    const found = await scrape()
    expect(
      [
        'imds_connections_dropped_total{reason="stalled"}',
        'imds_session_requests_total{session="token"}',
        'imds_forwarded_requests_total',
        served,
      ].map((series) => found.get(series)),
    ).toEqual([2, 1, 1, 3])
  }
})

test('durations are a histogram: cumulative buckets, of which the last has every request', async () => {
  const { meter, scrape } = aDaemon()
  for (const seconds of [0, 1_000]) meter.countResponse('/', 'GET', 'served', seconds)
  const found = await scrape()
  const buckets = [...found].filter(([series]) => series.startsWith('imds_request_duration_seconds_bucket{route="/",'))
  expect(buckets.map(([, count]) => count)).toEqual([...Array.from({ length: buckets.length - 1 }, () => 1), 2])
  expect(buckets.at(-1)![0]).toBe('imds_request_duration_seconds_bucket{route="/",le="+Inf"}')
  expect([
    found.get('imds_request_duration_seconds_sum{route="/"}'),
    found.get('imds_request_duration_seconds_count{route="/"}'),
  ]).toEqual([1_000, 2])
})

test('the counters of the firewall have a closed set of series once its agent has reported them', async () => {
  expect([...(await aDaemon().scrape()).keys()].filter((name) => name.startsWith('imds_firewall_packets'))).toEqual([])
  const packets = { admitted: 9, unknown_peers: 1, too_many: 2, fragments: 3, strays: 4, operators: 5 }
  const series = await aDaemon({ firewall: { packets: () => packets } }).scrape()
  expect([...series].filter(([name]) => name.startsWith('imds_firewall_packets'))).toEqual([
    ['imds_firewall_packets_total{result="admitted"}', 9],
    ['imds_firewall_packets_total{result="unknown-peers"}', 1],
    ['imds_firewall_packets_total{result="too-many"}', 2],
    ['imds_firewall_packets_total{result="fragments"}', 3],
    ['imds_firewall_packets_total{result="strays"}', 4],
    ['imds_firewall_packets_total{result="operators"}', 5],
  ])
})
