/** How long the firewall's table takes to replace, and what a guest notices of it. */
import { startLoad } from '../support/load/load.ts'
import { makeHypervisor, SERVICE } from '../support/netns/namespaces.ts'
import { startChild } from '../support/programs/processes.ts'
import type { Part } from './bench.ts'
import { quantile } from './report.ts'

const GUESTS = [500, 2_000]
const TIMES = 25
const SERVER = `
  require('node:http').createServer((_, response) => response.end('x')).listen(80, '${SERVICE}', () => console.log('up'))
  process.stdin.on('end', () => process.exit()).resume()`
const REPLACEMENTS = new URL('./firewall-replacements.ts', import.meta.url).pathname
const LINK = { address: '10.0.0.0/31', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:00', device: 'tap-int-0' }

interface Times {
  readonly transactionsMs: readonly number[]
  readonly appliedMs: readonly number[]
}

export const firewall: Part = async () => {
  const rows: string[][] = []
  for (const count of GUESTS) {
    const hypervisor = await makeHypervisor()
    try {
      const guest = await hypervisor.addGuest(LINK)
      const run = (...args: string[]) => startChild([...hypervisor.within, process.execPath, ...args])
      const replacing = await run(REPLACEMENTS, String(count), String(TIMES))
      const server = await run('-e', SERVER)
      const loads = await Promise.all([false, true].map((keepAlive) => startLoad(guest, { clients: 1, keepAlive })))
      await Promise.all(loads.map((load) => load.more(20)))
      const result = new Promise<Times>((resolve) => replacing.onLine((line) => resolve(JSON.parse(line) as Times)))
      replacing.writeLine('')
      const { transactionsMs, appliedMs } = await result
      const figures = await Promise.all(loads.map((load) => load.stop()))
      await server.stop()
      rows.push([
        String(count),
        ...[transactionsMs, appliedMs].flatMap((all) => [quantile(all, 0.5).toFixed(0), quantile(all, 1).toFixed(0)]),
        String(figures.reduce((sum, { requests }) => sum + requests, 0)),
        String(figures.reduce((sum, { failed, retried }) => sum + failed.length + retried, 0)),
        Math.max(...figures.map(({ slowestMs }) => slowestMs)).toFixed(0),
      ])
    } finally {
      await hypervisor.remove()
    }
  }
  return [
    {
      title: 'Replacements of the table',
      columns: ['guests', 'nft ms', 'longest', 'applied ms', 'longest', 'requests', 'failed', 'slowest ms'],
      rows,
      notes: [
        `${TIMES} replacements by nft alone, and as the agent applies them, with a check; guests with IPv4, IPv6 and a prefix. Meanwhile one guest asks a bare server, with a connection per request and with keep-alive.`,
      ],
    },
  ]
}
