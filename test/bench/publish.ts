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
import { startImds, type Built } from './processes.ts'
import { quantile, type Table } from './report.ts'

const INSTANCES = 500
const CHANGES = 1000
const WARM_UP = 200
const REQUEST = 'GET /latest/meta-data/tags/instance/revision HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n'

/** The other instances of the region, and the hypervisors that run them. */
const [OTHER_INSTANCES, OTHER_HYPERVISORS] = [10_000, 1_000]

/**
 * The time from a publish in Redis to the guest's response: in a region without other changes, and while the instances
 * of 1,000 other hypervisors change.
 */
export const publish: Part = async ({ built, redisUrl }) => {
  const tables = [await measure(built, redisUrl, 'publish', false)]
  return [...tables, await measure(built, redisUrl, 'publish-region', true)]
}

async function measure(built: Built, redisUrl: string, region: string, isBusy: boolean): Promise<Table> {
  const env = await populate(redisUrl, region, INSTANCES)
  const store = await openStore({ url: redisUrl, region })
  const changeOther = (position: number, revision: number) =>
    store.put(
      recordOf(INSTANCES + position, region, revision, { hypervisor: `host${position % OTHER_HYPERVISORS}` }),
      userDataOf(position),
    )
  if (isBusy) for (let position = 0; position < OTHER_INSTANCES; position++) await changeOther(position, 1)
  const imds = await startImds(built, env, INSTANCES)
  const guest = await Wire.open(imds.port, '127.0.0.1')
  const times = { sent: [] as number[], acknowledged: [] as number[], put: [] as number[], get: [] as number[] }
  let isOver = !isBusy
  let otherChanges = 0
  const churn = (async () => {
    while (!isOver) {
      await changeOther(otherChanges % OTHER_INSTANCES, 2 + Math.floor(otherChanges / OTHER_INSTANCES))
      otherChanges += 1
    }
  })()
  const startedMs = performance.now()
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
    isOver = true
    guest.end()
    await churn
    await store.close()
    await imds.stop()
  }
  const perSecond = (otherChanges / (performance.now() - startedMs)) * 1000
  const row = (name: string, values: readonly number[]) => [
    name,
    ...[0.5, 0.99, 1].map((share) => quantile(values, share).toFixed(2)),
  ]
  return {
    title: isBusy
      ? `From a publish to the guest, while ${OTHER_INSTANCES} instances of ${OTHER_HYPERVISORS} other hypervisors change`
      : 'From a publish to the guest',
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
      `The daemon received ${notices} notices for its ${WARM_UP + CHANGES} changes. Other hypervisors had ${perSecond.toFixed(0)} changes a second.`,
    ],
  }
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
