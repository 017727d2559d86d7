/** The latencies of nine guests that boot while a tenth guest floods the daemon. */
import { bootDuringFlood, FLOODS } from '../support/load/flood.ts'
import type { Part } from './bench.ts'
import { addressOf, populate } from './population.ts'
import { startImds } from './processes.ts'
import { quantile } from './report.ts'

const INSTANCES = 500
const GUESTS = Array.from({ length: 9 }, (_, i) => addressOf(i + 2))
const SECONDS = 10

/**
 * Latencies without a flood and under each kind of flood, with the default share of a guest and without the firewall.
 */
export const flood: Part = async ({ built, redisUrl }) => {
  const env = {
    ...(await populate(redisUrl, 'flood', INSTANCES)),
    IMDS_GUEST_BURST: '600',
    IMDS_GUEST_CONNECTIONS: '64',
  }
  const imds = await startImds(built, env, INSTANCES)
  try {
    const rows: string[][] = []
    let p99WithoutFlood = NaN
    for (const kind of FLOODS) {
      const { boots, requests, latenciesMs, failed, flooded } = await bootDuringFlood(
        kind,
        imds.port,
        addressOf(1),
        GUESTS,
        SECONDS,
      )
      const [median, p99] = [quantile(latenciesMs, 0.5), quantile(latenciesMs, 0.99)]
      if (kind === null) p99WithoutFlood = p99
      rows.push([
        kind ?? 'no flood',
        String(boots),
        String(requests),
        String(Object.values(failed).reduce((sum, count) => sum + count, 0)),
        median.toFixed(2),
        p99.toFixed(2),
        (p99 / p99WithoutFlood).toFixed(2),
        String(flooded),
      ])
    }
    return [
      {
        title: 'Nine guests boot while a tenth floods',
        columns: [
          'flood',
          'boots',
          'requests',
          'failed',
          'median ms',
          'p99 ms',
          'ratio of p99',
          'responses to the flood',
        ],
        rows,
        notes: [
          `${SECONDS} s each. A boot reads the whole tree and user-data, with one connection per request. The flooder and the guests share a core; the flooder runs at nice 19. No firewall. The aim: no failed request, and a p99 of at most twice that without a flood.`,
        ],
      },
    ]
  } finally {
    await imds.stop()
  }
}
