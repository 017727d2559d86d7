/** Requests that wait for a change: their memory, and how soon they are answered. */
import { setTimeout as sleep } from 'node:timers/promises'
import { openStore } from '../../src/store/open.ts'
import { Wire } from '../support/load/wire.ts'
import { request, until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { addressOf, populate, recordOf, userDataOf } from './population.ts'
import { residentMib, startImds } from './processes.ts'
import { median, quantile } from './report.ts'

const REGION = 'waiting'
const INSTANCES = 500
/** The guests that wait, and the held requests of each. */
const [GUESTS, HELD_EACH] = [125, 8]
const HELD = GUESTS * HELD_EACH
const LEAF = '/latest/meta-data/tags/instance/revision'
const head = (path: string) =>
  `GET ${path} HTTP/1.1\r\nHost: 169.254.169.254\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n`
const [READ, WAIT] = [head(LEAF), head(`${LEAF}?wait_for_change=true&timeout_sec=600`)]

export const waiting: Part = async ({ built, redisUrl }) => {
  const env = await populate(redisUrl, REGION, INSTANCES)
  const store = await openStore({ url: redisUrl, region: REGION })
  const imds = await startImds(built, env, INSTANCES)
  const guests: Wire[] = []
  try {
    for (let i = 0; i < HELD; i++) guests.push(await Wire.open(imds.port, addressOf(i % GUESTS)))
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
        ],
        notes: [
          `${HELD} held requests of ${GUESTS} guests, each on its own connection; ${INSTANCES} instances. The publisher, the guests and Redis share a core.`,
        ],
      },
    ]
  } finally {
    for (const guest of guests) guest.end()
    await store.close()
    await imds.stop()
  }
}

/** Sends a request that waits on each connection. Each promise is of the time of its response. */
function hold(guests: readonly Wire[]): Promise<number>[] {
  return guests.map((guest) => guest.ask(WAIT).then(() => performance.now()))
}

async function untilHeld(operatorPort: number, count: number): Promise<void> {
  await until(async () => {
    const metrics = (await request(operatorPort, '/metrics')).body.toString()
    return new RegExp(`^imds_held_requests ${count}$`, 'm').test(metrics)
  }, `${count} held requests`)
}
