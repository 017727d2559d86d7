/**
 * Requests that wait for a change: their memory, how soon they are answered, and what a storm of changes costs others.
 */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { openStore, type Publisher } from '../../src/store/open.ts'
import { request, until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { addressOf, populate, recordOf, userDataOf } from './population.ts'
import { residentMib, startImds } from './processes.ts'
import { median, quantile } from './report.ts'
import { runWrk } from './wrk.ts'

const REGION = 'waiting'
const INSTANCES = 500
/** The guests that wait, and the held requests of each. */
const [GUESTS, HELD_EACH] = [125, 8]
const HELD = GUESTS * HELD_EACH
const LEAF = '/latest/meta-data/tags/instance/revision'
const head = (path: string) =>
  `GET ${path} HTTP/1.1\r\nHost: 169.254.169.254\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n`
const [READ, WAIT] = [head(LEAF), head(`${LEAF}?wait_for_change=true&timeout_sec=600`)]
const STORM_PER_SECOND = 1_000

export const waiting: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, REGION, INSTANCES)
  const store = await openStore({ url: redisUrl, region: REGION })
  const imds = await startImds(built, env, INSTANCES)
  const guests: KeptConnection[] = []
  try {
    for (let i = 0; i < HELD; i++) guests.push(await KeptConnection.open(imds.port, addressOf(i % GUESTS)))
    await Promise.all(guests.map((guest) => guest.ask(READ)))
    await sleep(2_000)
    const idleMib = residentMib(imds.pid)
    const answers = hold(guests)
    await untilHeld(imds.operatorPort, HELD)
    await sleep(2_000)
    const heldMib = residentMib(imds.pid)

    const afterMs: number[] = []
    for (let guest = 0; guest < GUESTS; guest++) {
      const { kind } = await store.put(recordOf(guest, REGION, 2), userDataOf(guest))
      const publishedMs = performance.now()
      if (kind !== 'published') throw new Error(kind)
      const own = answers.filter((_answer, i) => i % GUESTS === guest)
      for (const answeredMs of await Promise.all(own)) afterMs.push(Math.max(0, answeredMs - publishedMs))
    }
    void hold(guests)
    await untilHeld(imds.operatorPort, HELD)

    const url = `http://127.0.0.1:${String(imds.port)}/latest/meta-data/instance-id`
    const runs = { quiet: [] as number[], storm: [] as number[] }
    let published = 0
    for (let round = 0; round < effort.rounds; round++) {
      runs.quiet.push((await runWrk(url, 'keep-alive', effort.seconds)).p99Ms)
      const storm = new AbortController()
      const changes = changeOthers(store, 3 + round * 1_000, storm.signal)
      runs.storm.push((await runWrk(url, 'keep-alive', effort.seconds)).p99Ms)
      storm.abort()
      published += await changes
    }
    const perSecond = published / (effort.rounds * effort.seconds)
    return [
      {
        title: 'Requests that wait for a change',
        columns: ['', 'figure', 'aim'],
        rows: [
          [
            'memory of a held request beyond its idle connection, KiB',
            (((heldMib - idleMib) * 1024) / HELD).toFixed(1),
            '<= 6',
          ],
          ['from the publish to the answer, median, ms', median(afterMs).toFixed(1), '<= 50'],
          ['the same, p99, ms', quantile(afterMs, 0.99).toFixed(1), ''],
          [
            `p99 of other requests during ${perSecond.toFixed(0)} changes a second, ratio to none`,
            (median(runs.storm) / median(runs.quiet)).toFixed(2),
            '<= 2',
          ],
        ],
        notes: [
          `${String(HELD)} held requests of ${String(GUESTS)} guests, each on its own connection; ${String(INSTANCES)} instances. The publisher, the guests and Redis share a core.`,
        ],
      },
    ]
  } finally {
    for (const guest of guests) guest.end()
    await store.close()
    await imds.stop()
  }
}

/** Sends a request that waits on each connection. Each promise is of the time of its answer. */
function hold(guests: readonly KeptConnection[]): Promise<number>[] {
  return guests.map((guest) => guest.ask(WAIT))
}

async function untilHeld(operatorPort: number, count: number): Promise<void> {
  await until(
    async () => {
      const metrics = (await request(operatorPort, '/metrics')).body.toString()
      return new RegExp(`^imds_held_requests ${String(count)}$`, 'm').test(metrics)
    },
    `${String(count)} held requests`,
  )
}

/** Publishes changes of guests that wait, at most STORM_PER_SECOND. Returns their number. */
async function changeOthers(store: Publisher, firstRevision: number, signal: AbortSignal): Promise<number> {
  const startedMs = performance.now()
  let changes = 0
  const publishNext = async () => {
    while (!signal.aborted) {
      const next = changes++
      const position = 1 + (next % (GUESTS - 1)) // wrk is guest 0
      await store.put(recordOf(position, REGION, firstRevision + Math.floor(next / (GUESTS - 1))), userDataOf(position))
      const aheadMs = (next * 1000) / STORM_PER_SECOND - (performance.now() - startedMs)
      if (aheadMs > 0) await sleep(aheadMs)
    }
  }
  await Promise.all(Array.from({ length: 4 }, publishNext))
  return changes
}

/** A client's connection, which stays open. */
export class KeptConnection {
  readonly #socket: Socket

  constructor(socket: Socket) {
    this.#socket = socket
  }

  static open(port: number, localAddress: string): Promise<KeptConnection> {
    return new Promise((resolve, reject) => {
      const socket = connect({ port, host: '127.0.0.1', localAddress }, () => {
        resolve(new KeptConnection(socket))
      }).on('error', reject)
    })
  }

  /** Sends a request, and returns the time of its response. */
  ask(text: string): Promise<number> {
    return new Promise((resolve) => {
      this.#socket.once('data', () => {
        resolve(performance.now())
      })
      this.#socket.write(text)
    })
  }

  /** Sends a request, and passes on what is received from now on. */
  read(text: string, received: (text: string) => void): void {
    this.#socket.setEncoding('utf8').on('data', received)
    this.#socket.write(text)
  }

  end(): void {
    this.#socket.destroy()
  }
}
