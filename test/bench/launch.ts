/** From the publish of a new instance until `imdsctl wait` lets its guest start, with the firewall and many guests. */
import { createServer, connect } from 'node:net'
import { join } from 'node:path'
import { openStore } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startFirewallHost } from '../support/netns/firewall-host.ts'
import { until } from '../support/programs/daemon.ts'
import { shortDirectory } from '../support/test-directory.ts'
import type { Part } from './bench.ts'
import { HYPERVISOR } from './population.ts'
import { quantile } from './report.ts'

const [GUESTS, TIMES] = [[500, 2_000], 20]
/** Of the store, in the namespace of the hypervisor. */
const PORT = 6_380
const hex = (n: number) => n.toString(16).padStart(2, '0')

export const launch: Part = async ({ redisUrl }) => {
  const rows: string[][] = []
  for (const count of GUESTS) {
    const region = `launch${count}`
    const stops: (() => unknown)[] = []
    const scope = { teardown: (stop: () => unknown) => void stops.unshift(stop) }
    try {
      const store = await openStore({ url: redisUrl, region })
      stops.push(() => store.close())
      const put = (n: number) =>
        store.put(
          anInstance({
            id: `srv-${n}`,
            region,
            hypervisors: [HYPERVISOR],
            interfaces: [
              {
                id: `int-${n}`,
                macAddress: `02:24:19:01:${hex(n >> 8)}:${hex(n & 255)}`,
                ipv4Addresses: [`10.1.${n >> 8}.${n & 255}`],
              },
            ],
          }),
          'none',
        )
      for (let n = 0; n < count; n++) await put(n)
      const socketPath = join(shortDirectory(scope), 'redis.sock')
      const toRedis = createServer((socket) => {
        const redis = connect(Number(new URL(redisUrl).port), '127.0.0.1')
        for (const end of [socket, redis]) end.on('error', () => undefined)
        socket.pipe(redis).pipe(socket)
      }).listen(socketPath)
      stops.push(() => toRedis.close())
      const host = await startFirewallHost(scope, {
        IMDS_STORE: `redis://127.0.0.1:${PORT}`,
        IMDS_REGION: region,
        IMDS_HYPERVISOR: HYPERVISOR,
      })
      await host.hypervisor.forward(PORT, socketPath)
      await host.startFirewall()
      const isApplied = async () => (await host.operator('/readyz')).includes('"applied":true')
      await until(isApplied, 'the rules')
      const ms: number[] = []
      for (let n = count; n < count + TIMES; n++) {
        const startedMs = performance.now()
        await put(n)
        const { status, stderr } = await host.imdsctl('wait', `srv-${n}`, '--revision', '1', '--timeout', '30')
        if (status !== 0) throw new Error(stderr)
        ms.push(performance.now() - startedMs)
      }
      rows.push([String(count), ...[0.5, 0.9, 1].map((share) => quantile(ms, share).toFixed(0))])
    } finally {
      for (const stop of stops) await stop()
    }
  }
  return [
    {
      title: 'From a publish until the guest may start',
      columns: ['guests', 'median ms', 'p90', 'longest'],
      rows,
      notes: [
        `${TIMES} new instances one after another, without the start of imdsctl. The aim: 1 s with 2,000 guests.`,
      ],
    },
  ]
}
