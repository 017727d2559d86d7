/**
 * How long until a guest sees a change?
 *
 * One change after another is published as a control plane does it, by the library. Beside it a guest asks for the leaf that carries
 * the revision, on a connection that stays open, again as soon as it has its answer. A time ends when the guest has read the new value,
 * so it holds one round trip of the guest, and on average half of another: `a guest's GET` tells how much that is.
 */
import { connect, type Socket } from 'node:net'
import { openStore } from '../../src/store/open.ts'
import { request } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { populate, recordOf, userDataOf } from './population.ts'
import { startImds, type Built } from './processes.ts'
import { quantile, type Table } from './report.ts'

const INSTANCES = 500
const CHANGES = 1000
const WARM_UP = 200
const REQUEST = 'GET /latest/meta-data/tags/instance/revision HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n'

/** Elsewhere in the region: so many instances, on so many hosts. */
const [ELSEWHERE, HOSTS] = [10_000, 1_000]

/** The time from a publish in Redis to a guest's answer, alone and while instances of 1,000 other hosts change without a pause. */
export const publish: Part = async ({ built, redisUrl }) => {
  const tables = [await measure(built, redisUrl, 'publish', false)]
  return [...tables, await measure(built, redisUrl, 'publish-region', true)]
}

async function measure(built: Built, redisUrl: string, region: string, isBusy: boolean): Promise<Table> {
  const env = await populate(redisUrl, region, INSTANCES)
  const store = await openStore({ url: redisUrl, region })
  const elsewhere = (position: number, revision: number) =>
    store.put(recordOf(INSTANCES + position, region, revision, { hypervisor: `host${String(position % HOSTS)}` }), userDataOf(position))
  if (isBusy) for (let position = 0; position < ELSEWHERE; position++) await elsewhere(position, 1)
  const imds = await startImds(built, env, INSTANCES)
  const guest = await Guest.connect(imds.port)
  const times = { sent: [] as number[], acknowledged: [] as number[], put: [] as number[], get: [] as number[] }
  let isOver = !isBusy
  let changesElsewhere = 0
  const churn = (async () => {
    while (!isOver) {
      await elsewhere(changesElsewhere % ELSEWHERE, 2 + Math.floor(changesElsewhere / ELSEWHERE))
      changesElsewhere += 1
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
        if (kind !== 'published') throw new Error(`revision ${String(revision)} was not published: ${kind}`)
      })
      const seenMs = guest.untilSees(String(revision))
      await put
      const seen = await seenMs
      if (revision < 2 + WARM_UP) continue
      times.sent.push(seen - sentMs)
      times.acknowledged.push(seen - acknowledgedMs)
      times.put.push(acknowledgedMs - sentMs)
      times.get.push(guest.lastRoundTripMs)
    }
    notices = Number(/^imds_notices_total (\d+)/m.exec((await request(imds.operatorPort, '/metrics')).body.toString())?.[1])
  } finally {
    isOver = true
    guest.end()
    await churn
    await store.close()
    await imds.stop()
  }
  const perSecond = changesElsewhere / (performance.now() - startedMs) * 1000
  const row = (name: string, values: readonly number[]) => [name, ...[0.5, 0.99, 1].map((share) => quantile(values, share).toFixed(2))]
  return {
    title: isBusy ? `From a publish to the guest, ${String(ELSEWHERE)} instances on ${String(HOSTS)} other hosts changing` : 'From a publish to the guest',
    columns: ['ms', 'median', 'p99', 'longest'],
    rows: [row('put sent -> guest sees it', times.sent), row('put acknowledged -> guest sees it', times.acknowledged), row('put sent -> acknowledged', times.put), row('a guest\'s GET', times.get)],
    notes: [
      `${String(CHANGES)} changes of one of ${String(INSTANCES)} instances, one at a time, with 1 KiB of user-data each. The publisher, the guest and Redis share a core; the daemon has the other.`,
      'From sent: the library checks the record, Redis runs the script, the daemon hears of it, reads the instance, checks it and replaces it, the guest asks and reads its answer.',
      `This host heard ${String(notices)} notices for its ${String(WARM_UP + CHANGES)} changes; elsewhere ${perSecond.toFixed(0)} changes a second.`,
    ],
  }
}

/** A guest that asks on one connection. */
class Guest {
  readonly #socket: Socket
  lastRoundTripMs = NaN

  constructor(socket: Socket) {
    this.#socket = socket
  }

  static async connect(port: number): Promise<Guest> {
    return new Promise((resolve, reject) => {
      const socket = connect(port, '127.0.0.1', () => { resolve(new Guest(socket)) }).setNoDelay(true).setEncoding('latin1').on('error', reject)
    })
  }

  /** Asks until the answer is `value`; gives the time at which it was read. */
  async untilSees(value: string): Promise<number> {
    return new Promise((resolve) => {
      let askedMs = 0
      const ask = () => {
        askedMs = performance.now()
        this.#socket.write(REQUEST)
      }
      const read = (answer: string) => {
        if (!answer.endsWith(`\r\n\r\n${value}`)) {
          ask()
          return
        }
        const nowMs = performance.now()
        this.lastRoundTripMs = nowMs - askedMs
        this.#socket.off('data', read)
        resolve(nowMs)
      }
      this.#socket.on('data', read)
      ask()
    })
  }

  end(): void {
    this.#socket.destroy()
  }
}
