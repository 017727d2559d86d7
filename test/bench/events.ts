/**
 * Programs that wait for a resource: how soon a wait ends after the change.
 *
 * imds-api runs from its sources. It shares a core with nothing else; PostgreSQL and the clients are on the other.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { formatRequest, Wire } from '../support/load/wire.ts'
import { startBenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { quantile } from './report.ts'

const CHANGES = 200

export const events: Part = async ({ built, redisUrl }) => {
  const api = await startBenchApi(built, 'bench-events', redisUrl)
  try {
    const server = await api.call('POST', '/1.0/servers', { image: 'debian-12' })
    const [{ id: destination }] = server['interfaces'] as [{ readonly id: string }]
    const path = `/1.0/cloud_ips/${String((await api.call('POST', '/1.0/cloud_ips'))['id'])}`
    const waiting = await Wire.open(api.port, '127.0.2.1')
    const afterMs: number[] = []
    for (let n = 0; n < CHANGES; n++) {
      const [change, status] = n % 2 === 0 ? ['map', 'mapped'] : ['unmap', 'unmapped']
      const response = waiting
        .ask(formatRequest(api.token, 'GET', `${path}/wait?status=${status}&timeout=60`))
        .then(() => performance.now())
      await sleep(20)
      await api.call('POST', `${path}/${change}`, change === 'map' ? { destination } : {})
      const changedMs = performance.now()
      afterMs.push(Math.max(0, (await response) - changedMs))
    }
    waiting.end()
    return [
      {
        title: 'imds-api: from the response of a change to that of a request that waits for it',
        columns: ['ms', 'median', 'p99', 'aim'],
        rows: [['', quantile(afterMs, 0.5).toFixed(1), quantile(afterMs, 0.99).toFixed(1), '<= 20']],
        notes: [`${CHANGES} changes of one cloud IP.`],
      },
    ]
  } finally {
    await api.stop()
  }
}
