/**
 * Many daemons in one process, for scale.ts: each has the real source and sync of a hypervisor, with its two connections
 * to Redis and a view. They have no guests, journal or metrics, and share one core.
 *
 *     node simulated-daemons.ts URL REGION COUNT
 *
 * It prints a line of JSON each second: how many daemons are ready, how many have completed a resync since the last
 * line on standard input, and the instances in their views.
 */
import { createInterface } from 'node:readline'
import { pino } from 'pino'
import { RedisSource } from '../../src/store/redis/source.ts'
import { Sync } from '../../src/imdsd/view/sync.ts'
import { View } from '../../src/imdsd/view/view.ts'
import { NO_CHANGE_LOG } from '../support/fixtures/change-log.ts'
import { largeId } from '../support/fixtures/large-region.ts'

/** What is printed. */
export interface Progress {
  readonly ready: number
  readonly resynced: number
  readonly instances: number
}

const [url, region, count] = process.argv.slice(2) as [string, string, string]
const nothing = () => undefined
const notCounted = { inc: nothing }
let resynced = new Set<Sync>()

const daemons = Array.from({ length: Number(count) }, (_, n) => {
  const hypervisor = largeId('hv', n)
  const view = new View({}, () => 0, false)
  const source = new RedisSource({
    settings: { url },
    region,
    hypervisor,
    cipher: undefined,
    userDataMaxBytes: 16_384,
    announcement: {
      id: hypervisor,
      foundOther: nothing,
      state: () => ({ version: 'bench', instances: view.size, lagSeconds: 0 }),
      written: nothing,
    },
  })
  const sync: Sync = new Sync({
    source,
    view,
    changeLog: NO_CHANGE_LOG,
    hypervisor,
    userDataMaxBytes: 16_384,
    resyncMs: 3_600_000,
    onChange: nothing,
    onResync: () => resynced.add(sync),
    metrics: { notices: notCounted, resyncs: notCounted, recordFaults: notCounted },
    log: pino({ enabled: false }),
  })
  return { sync, view }
})
for (const { sync } of daemons) sync.start()
createInterface({ input: process.stdin })
  .on('line', () => {
    resynced = new Set()
  })
  .on('close', () => process.exit(0))
setInterval(() => {
  const progress: Progress = {
    ready: daemons.filter(({ sync }) => sync.status().ready).length,
    resynced: resynced.size,
    instances: daemons.reduce((sum, { view }) => sum + view.size, 0),
  }
  console.log(JSON.stringify(progress))
}, 250)
