import { expect, test } from 'vitest'
import { runChecks } from '../../../src/runtime/check.ts'
import { OF_DAEMON } from '../../../src/imdsd/checks/checks.ts'
import { parseConfig } from '../../../src/imdsd/config.ts'
import { buildDaemonState, type DaemonStateParts } from '../../../src/imdsd/daemon-state.ts'
import { buildMetrics, type MetricsSources } from '../../../src/imdsd/metrics.ts'
import { RequestMeter } from '../../../src/imdsd/guest/meter.ts'
import { READY, VARIABLES } from '../../support/fixtures/look.ts'

/** What the checks of the daemon find, each as `CHECK STATE TEXT`. */
async function linesOf(change: Partial<DaemonStateParts> = {}) {
  const parsed = parseConfig(VARIABLES)
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  const metrics = buildMetrics()
  const meter = new RequestMeter()
  metrics.setSources({
    meter,
  } as unknown as MetricsSources)
  const look = buildDaemonState({
    config: parsed.value,
    guests: [{ network: 'default', host: '127.0.0.1', port: 80 }],
    operator: () => ({ host: '127.0.0.1', port: 9169 }),
    readiness: () => READY,
    registry: metrics.registry,
    state: { file: () => ({ kind: 'directory', mode: 0o40_700, size: 0 }), freeBytes: 2 ** 30 },
    ...change,
  })
  const results = await runChecks(OF_DAEMON, look)
  return { metrics, lines: results.map(({ check, state, text }) => `${check} ${state} ${text}`) }
}

test('the checks that the daemon runs find a sound hypervisor', async () => {
  const { lines } = await linesOf()
  expect(lines.map((line) => line.replace(/\d+ of \d+/, 'N of M'))).toEqual([
    'daemon ok it is ready',
    'addresses ok 127.0.0.1 is there',
    'store-in-use ok imdsd is connected to redis://10.0.0.1; the last full comparison was 1 s ago',
    'records ok it serves 1 instance',
    'firewall ok IMDS_FIREWALL is off',
    'state-directory ok /var/lib/imds can be written, with 1.0 GiB left',
    'descriptors ok N of M are open',
    'clock ok it was not set back since the start of imdsd',
  ])
})

test('an address that is gone, a lost store, and a disk that does not answer are found', async () => {
  const { lines } = await linesOf({
    guests: [{ network: 'default', host: '192.0.2.9', port: 80 }],
    readiness: () => ({ ...READY, ready: false, problem: 'the store was lost', connected: false }),
    state: { file: () => ({ kind: 'unseen', code: 'its disk does not answer' }), freeBytes: undefined },
  })
  expect(lines).toContain('daemon failure the store was lost')
  expect(lines).toContain('addresses failure no interface of this hypervisor has 192.0.2.9')
  expect(lines).toContain('state-directory warning /var/lib/imds cannot be seen: its disk does not answer')
  expect(lines.some((line) => line.startsWith('store-in-use failure'))).toBe(true)
})
