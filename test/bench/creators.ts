/** A quiet account's reads while others create servers, each as fast as it can. */
import { setTimeout as sleep } from 'node:timers/promises'
import { formatRequest, Wire } from '../support/load/wire.ts'
import { CALLERS, startBenchApi } from './api.ts'
import type { Part } from './bench.ts'
import { median } from './report.ts'

const SECONDS = 8
const PAUSE_MS = 20
const CREATORS = [0, 100]

export const creators: Part = async ({ built, redisUrl }) => {
  const api = await startBenchApi(built, 'bench-creators', redisUrl)
  const [quiet, ...busy] = await Promise.all(CALLERS.map((caller) => api.tokenOf(caller)))
  const rows: string[][] = []
  try {
    for (const count of CREATORS) {
      let isRunning = true as boolean // TypeScript does not see that it changes
      const statuses = new Map<number, number>()
      const create = async (token: string) => {
        let wire = await Wire.open(api.port, '127.0.0.1')
        while (isRunning) {
          if (!wire.isOpen) wire = await Wire.open(api.port, '127.0.0.1')
          const { status } = await wire.ask(formatRequest(token, 'POST', '/1.0/servers', { image: 'img-bench' }))
          statuses.set(status, (statuses.get(status) ?? 0) + 1)
        }
        wire.end()
      }
      const creating = Promise.all(busy.slice(0, count).map(create))
      const reader = await Wire.open(api.port, '127.0.0.1')
      const times: number[] = []
      await sleep(1_000)
      for (const end = performance.now() + SECONDS * 1_000; performance.now() < end;) {
        await sleep(PAUSE_MS)
        const { status, ms } = await reader.ask(formatRequest(quiet!, 'GET', '/1.0/zones'))
        if (status !== 200) throw new Error(`GET zones: ${status}`)
        times.push(ms)
      }
      reader.end()
      isRunning = false
      await creating
      const created = statuses.get(202) ?? 0
      const others = [...statuses].filter(([status]) => status !== 202).map((one) => one.join(': '))
      rows.push([String(count), median(times).toFixed(1), (created / (SECONDS + 1)).toFixed(0), others.join(', ')])
    }
    return [
      {
        title: 'A quiet account beside accounts that create servers',
        columns: ['accounts that create', 'GET /zones, median ms', 'servers created/s', 'other statuses'],
        rows,
        notes: [
          'Each creates one server after another. imds-api has a core; PostgreSQL and the clients share the other.',
        ],
      },
    ]
  } finally {
    await api.stop()
  }
}
