/**
 * How long until a guest sees a change?
 *
 * One change after another is published as a control plane does it, by the library. Beside it a guest asks for the leaf that carries
 * the revision, on a connection that stays open, again as soon as it has its answer. A time ends when the guest has read the new value,
 * so it holds one round trip of the guest, and on average half of another: `a guest's GET` tells how much that is.
 */
import { connect, type Socket } from 'node:net'
import { openStore } from '../../src/store/open.ts'
import type { Part } from './bench.ts'
import { populate, recordOf, userDataOf } from './population.ts'
import { startImds } from './processes.ts'
import { quantile } from './report.ts'

const INSTANCES = 500
const REGION = 'publish'
const CHANGES = 1000
const WARM_UP = 200
const REQUEST = 'GET /latest/meta-data/tags/instance/revision HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n'

/** The time from a publish in Redis to a guest's answer. */
export const publish: Part = async ({ built, redisUrl }) => {
  const env = await populate(redisUrl, REGION, INSTANCES)
  const imds = await startImds(built, env, INSTANCES)
  const store = await openStore({ url: redisUrl, region: REGION })
  const guest = await Guest.connect(imds.port)
  const times = { sent: [] as number[], acknowledged: [] as number[], put: [] as number[], get: [] as number[] }
  try {
    for (let revision = 2; revision < 2 + WARM_UP + CHANGES; revision++) {
      const record = recordOf(0, REGION, revision)
      const sentMs = performance.now()
      let acknowledgedMs = NaN
      const put = store.put(record, userDataOf(0)).then(({ result }) => {
        acknowledgedMs = performance.now()
        if (result !== 'published') throw new Error(`revision ${String(revision)} was not published: ${result}`)
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
  } finally {
    guest.end()
    await store.close()
    await imds.stop()
  }
  const row = (name: string, values: readonly number[]) => [name, ...[0.5, 0.99, 1].map((share) => quantile(values, share).toFixed(2))]
  return [{
    title: 'From a publish to the guest',
    columns: ['ms', 'median', 'p99', 'longest'],
    rows: [row('put sent -> guest sees it', times.sent), row('put acknowledged -> guest sees it', times.acknowledged), row('put sent -> acknowledged', times.put), row('a guest\'s GET', times.get)],
    notes: [
      `${String(CHANGES)} changes of one of ${String(INSTANCES)} instances, one at a time, with 1 KiB of user-data each. The publisher, the guest and Redis share a core; the daemon has the other.`,
      'From sent: the library checks the record, Redis runs the script, the daemon hears of it, reads the instance, checks it and replaces it, the guest asks and reads its answer.',
    ],
  }]
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
