/**
 * The time from a publish until a guest sees the change.
 *
 * One change after another is published by the library. Meanwhile a guest reads the leaf that contains the revision,
 * repeatedly on a keep-alive connection. A measured time ends when the guest has read the new value. So it
 * includes one and a half round trips of the guest on average: the row `a guest's GET` shows how long one is.
 */
import { openStore } from '../../src/store/open.ts'
import { Wire } from '../support/load/wire.ts'
import { request } from '../support/programs/daemon.ts'
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
  const times = { sent: [] as number[], acknowledged: [] as number[], put: [] as number[], get: [] as number[] }
  let notices: number
  try {
    for (let revision = 2; revision < 2 + WARM_UP + CHANGES; revision++) {
      const record = recordOf(0, region, revision)
      const sentMs = performance.now()
      let acknowledgedMs = NaN
      const put = store.put(record, userDataOf(0)).then(({ kind }) => {
        acknowledgedMs = performance.now()
        if (kind !== 'published') throw new Error(`revision ${revision} was not published: ${kind}`)
      })
      const seen = untilSees(guest, String(revision))
      await put
      const { seenMs, roundTripMs } = await seen
      if (revision < 2 + WARM_UP) continue
      times.sent.push(seenMs - sentMs)
      times.acknowledged.push(seenMs - acknowledgedMs)
      times.put.push(acknowledgedMs - sentMs)
      times.get.push(roundTripMs)
    }
    notices = Number(
      /^imds_notices_total (\d+)/m.exec((await request(imds.operatorPort, '/metrics')).body.toString())?.[1],
    )
  } finally {
    guest.end()
    await store.close()
    await imds.stop()
  }
  const row = (name: string, values: readonly number[]) => [
    name,
    ...[0.5, 0.99, 1].map((share) => quantile(values, share).toFixed(2)),
  ]
  return [
    {
      title: 'From a publish to the guest',
      columns: ['ms', 'median', 'p99', 'longest'],
      rows: [
        row('put sent -> guest sees it', times.sent),
        row('put acknowledged -> guest sees it', times.acknowledged),
        row('put sent -> acknowledged', times.put),
        row("a guest's GET", times.get),
      ],
      notes: [
        `${CHANGES} changes of one of ${INSTANCES} instances, one at a time, with 1 KiB of user-data each. The publisher, the guest and Redis share a core; the daemon has the other.`,
        'After `put sent`: the library validates the record, Redis runs the script, the daemon gets the notice, loads the instance, validates it and replaces it, and the guest sends a GET and reads the response.',
        `The daemon received ${notices} notices for its ${WARM_UP + CHANGES} changes.`,
      ],
    },
  ]
}

/** Sends requests on one connection until a response has `value`. Returns the time at which that was read. */
async function untilSees(
  guest: Wire,
  value: string,
): Promise<{ readonly seenMs: number; readonly roundTripMs: number }> {
  for (;;) {
    const { body, ms } = await guest.ask(REQUEST)
    if (body === value) return { seenMs: performance.now(), roundTripMs: ms }
  }
}
