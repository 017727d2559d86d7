/**
 * The time from a publish until a guest sees the change.
 *
 * One change after another is published by the library. Meanwhile a guest reads the leaf that contains the revision,
 * repeatedly on a keep-alive connection. A measured time ends when the guest has read the new value. So it
 * includes one and a half round trips of the guest on average.
 */
import { openStore } from '../../src/store/open.ts'
import { Wire } from '../support/load/wire.ts'
import type { Part } from './bench.ts'
import { populate, recordOf, userDataOf } from './population.ts'
import { startImds } from './processes.ts'
import { quantile } from './report.ts'

const INSTANCES = 500
const CHANGES = 1000
const WARM_UP = 200
const REQUEST = 'GET /latest/meta-data/tags/instance/revision HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n'

/** The time from a publish in Redis to the guest's response. */
export const publish: Part = async ({ built, redisUrl }) => {
  const region = 'publish'
  const env = await populate(redisUrl, region, INSTANCES)
  const store = await openStore({ url: redisUrl, region })
  const imds = await startImds(built, env, INSTANCES)
  const guest = await Wire.open(imds.port, '127.0.0.1')
  const times: number[] = []
  try {
    for (let revision = 2; revision < 2 + WARM_UP + CHANGES; revision++) {
      const record = recordOf(0, region, revision)
      const sentMs = performance.now()
      const seen = untilSees(guest, String(revision))
      const { kind } = await store.put(record, userDataOf(0))
      if (kind !== 'published') throw new Error(`revision ${revision} was not published: ${kind}`)
      const seenMs = await seen
      if (revision >= 2 + WARM_UP) times.push(seenMs - sentMs)
    }
  } finally {
    guest.end()
    await store.close()
    await imds.stop()
  }
  return [
    {
      title: 'From a publish to the guest',
      columns: ['ms', 'median', 'p99'],
      rows: [['', quantile(times, 0.5).toFixed(2), quantile(times, 0.99).toFixed(2)]],
      notes: [
        `${CHANGES} changes of one of ${INSTANCES} instances, one at a time, with 1 KiB of user-data each. The publisher, the guest and Redis share a core.`,
      ],
    },
  ]
}

/** Sends requests on one connection until a response has `value`. Returns the time at which that was read. */
async function untilSees(guest: Wire, value: string): Promise<number> {
  while ((await guest.ask(REQUEST)).body !== value);
  return performance.now()
}
