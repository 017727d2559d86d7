/** What guests cost in memory that use all of their share: a pending response on each connection, and all behind it. */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Part } from './bench.ts'
import { addressOf, populate } from './population.ts'
import { residentMib, startImds } from './processes.ts'

const REGION = 'pipelined'
const [GUESTS, CONNECTIONS, HELD] = [40, 64, 8]
const LEAF = '/latest/meta-data/tags/instance/revision'
const WAIT = `GET ${LEAF}?wait_for_change=true&timeout_sec=600 HTTP/1.1\r\n\r\n`
/** Beyond the share of requests, so that the refusals are pending. */
const PLAIN = `GET ${LEAF} HTTP/1.1\r\n\r\n`
const BEHIND = `HEAD ${LEAF} HTTP/1.1\r\nX: ${'x'.repeat(15_000)}\r\n\r\n`.repeat(64)

export const pipelined: Part = async ({ built, redisUrl }) => {
  const env = await populate(redisUrl, REGION, GUESTS)
  const share = { IMDS_GUEST_BURST: '600', IMDS_GUEST_REQUESTS_PER_SECOND: '100', IMDS_GUEST_CONNECTIONS: '64' }
  const imds = await startImds(built, { ...env, ...share }, GUESTS)
  const sockets: Socket[] = []
  try {
    for (let i = 0; i < GUESTS * CONNECTIONS; i++) {
      const socket = connect({ port: imds.port, host: '127.0.0.1', localAddress: addressOf(i % GUESTS) })
      sockets.push(socket.on('error', () => undefined).resume())
    }
    await sleep(5_000)
    const idleMib = residentMib(imds.pid)
    for (const [i, socket] of sockets.entries()) socket.write((i < GUESTS * HELD ? WAIT : PLAIN.repeat(100)) + BEHIND)
    const afterMib: number[] = []
    for (let i = 0; i < 24; i++) {
      await sleep(2_500)
      afterMib.push(residentMib(imds.pid))
    }
    const [mostMib, lastMib] = [Math.max(...afterMib), afterMib.at(-1)!]
    return [
      {
        title: 'Requests behind pending responses',
        columns: ['', 'figure', 'aim'],
        rows: [
          ['resident with idle connections, MiB', idleMib.toFixed(0), ''],
          ['the most within a minute of pipelining, MiB', mostMib.toFixed(0), ''],
          ['at its end, MiB', lastMib.toFixed(0), ''],
          ['the most for each guest, MiB', ((mostMib - idleMib) / GUESTS).toFixed(1), '<= 10'],
        ],
        notes: [`${GUESTS} guests with ${CONNECTIONS} connections each, ${HELD} of them held requests.`],
      },
    ]
  } finally {
    for (const socket of sockets) socket.destroy()
    await imds.stop()
  }
}
