/**
 * The status page of a daemon with 500 instances: its weight, the turns of the event loop that it takes, and how long a
 * guest waits while one operator loads it in a loop, with as many connections as one address may have.
 */
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { MAX_PER_ADDRESS } from '../../src/imdsd/operator/connections.ts'
import { request } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { TURNS, turnsOf, WatchingGuest } from './guest.ts'
import { addressOf, populate } from './population.ts'
import { startImds } from './processes.ts'
import { median, quantile } from './report.ts'

const INSTANCES = 500
const LOADS = 100
const ROUNDS = 5
const ROUND_MS = 4_000

/** Weight, turns and waits. */
export const page: Part = async ({ built, redisUrl }) => {
  const turnsFile = join(built.directory, 'page-turns')
  const env = { ...(await populate(redisUrl, 'page', INSTANCES)), TURNS_FILE: turnsFile }
  const imds = await startImds(built, env, INSTANCES, { nodeArgs: TURNS })
  const guest = new WatchingGuest(imds.port)
  const load = async () => (await request(imds.operatorPort, '/')).body
  try {
    for (let position = 0; position < INSTANCES; position++) await boot(imds.port, addressOf(position))
    const body = await load()
    await sleep(1_000)
    process.kill(imds.pid, 'SIGUSR2')
    for (let i = 0; i < LOADS; i++) await load()
    process.kill(imds.pid, 'SIGUSR2')
    const turns = await turnsOf(turnsFile)
    const waits = await waitsOf(guest, load)
    return [
      {
        title: 'The status page of 500 instances',
        columns: ['', ''],
        rows: [
          ['KiB; compressed', `${kib(body)}; ${kib(gzipSync(body))}`],
          [
            `CPU ms of a turn during ${LOADS} loads: p99; longest`,
            `${quantile(turns, 0.99).toFixed(1)}; ${Math.max(...turns).toFixed(1)}`,
          ],
          ['wait of a guest, ms, without readers: median; p99', waits.without],
          ['the same while an operator loads the page in a loop', waits.during],
          ['ratio of the medians; of the p99', waits.ratio],
        ],
        notes: [
          'The aims: at most 60 KB compressed, and at most 50 ms of the event loop at a time.',
          `${ROUNDS} rounds of ${ROUND_MS / 1000} s with and without readers in turn; ratios are medians of the rounds' ratios.`,
        ],
      },
    ]
  } finally {
    guest.close()
    await imds.stop()
  }
}

/** Sends what the guest at an address sends when it boots, in short. */
async function boot(port: number, address: string): Promise<void> {
  for (const path of ['/latest/meta-data/instance-id', '/latest/user-data']) await request(port, path, address)
}

/** The guest's waits, with and without an operator who loads the page in a loop, as text. */
async function waitsOf(guest: WatchingGuest, load: () => Promise<unknown>) {
  const rounds: { readonly without: readonly number[]; readonly during: readonly number[] }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const without = await guest.during(() => sleep(ROUND_MS))
    const during = await guest.during(async () => {
      const endMs = performance.now() + ROUND_MS
      const reader = async () => {
        while (performance.now() < endMs) await load().catch(() => undefined)
      }
      await Promise.all(Array.from({ length: MAX_PER_ADDRESS }, reader))
    })
    rounds.push({ without, during })
  }
  const of = (quantileOf: number, kind: 'without' | 'during') =>
    median(rounds.map((round) => quantile(round[kind], quantileOf)))
  const ratio = (quantileOf: number) =>
    median(rounds.map(({ without, during }) => quantile(during, quantileOf) / quantile(without, quantileOf)))
  const texts = (kind: 'without' | 'during') => `${of(0.5, kind).toFixed(2)}; ${of(0.99, kind).toFixed(2)}`
  return {
    without: texts('without'),
    during: texts('during'),
    ratio: `${ratio(0.5).toFixed(2)}; ${ratio(0.99).toFixed(2)}`,
  }
}

function kib(bytes: Buffer): string {
  return (bytes.length / 1024).toFixed(1)
}
