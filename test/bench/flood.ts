/**
 * What do nine guests that boot notice of a tenth that floods?
 */
import { bootUnder, FLOODS } from '../support/load/flood.ts'
import type { Part } from './bench.ts'
import { addressOf, populate } from './population.ts'
import { startImds } from './processes.ts'
import { quantile } from './report.ts'

const INSTANCES = 500
const GUESTS = Array.from({ length: 9 }, (_, i) => addressOf(i + 2))
const SECONDS = 10

/** Latencies of the nine without a flood and under each, with the fair share of the configuration's defaults and without nftables. */
export const flood: Part = async ({ built, redisUrl }) => {
  const env = { ...await populate(redisUrl, 'flood', INSTANCES), IMDS_GUEST_BURST: '600', IMDS_GUEST_CONNECTIONS: '64' }
  const imds = await startImds(built, env, INSTANCES)
  try {
    const rows: string[][] = []
    let quietP99 = NaN
    for (const kind of FLOODS) {
      const { boots, requests, latenciesMs, failed, flooded } = await bootUnder(kind, imds.port, addressOf(1), GUESTS, SECONDS)
      const [median, p99] = [quantile(latenciesMs, 0.5), quantile(latenciesMs, 0.99)]
      if (kind === null) quietP99 = p99
      rows.push([kind ?? 'no flood', String(boots), String(requests), String(Object.values(failed).reduce((sum, count) => sum + count, 0)),
        median.toFixed(2), p99.toFixed(2), (p99 / quietP99).toFixed(2), String(flooded)])
    }
    return [{
      title: 'Nine guests boot while a tenth floods',
      columns: ['the tenth', 'boots', 'requests', 'failed', 'median ms', 'p99 ms', 'ratio of p99', 'answers to the flood'],
      rows,
      notes: [`${String(SECONDS)} s each. A boot reads the whole tree and user-data, a connection per request. Flooder and guests share a core, the flooder at nice 19; no nftables. The aim: nothing failed, p99 within 2 times.`],
    }]
  } finally {
    await imds.stop()
  }
}
