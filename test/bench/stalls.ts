/**
 * The longest turns of the daemon's event loop while it reads large user-data: during a turn, guests wait.
 *
 * A running daemon has one instance; then its database is swapped for one with many more (SWAPDB, so there is no notice).
 * The measurement ends when all of them are in the view, which they enter when they are in the journal, and no rewrite is
 * being written. Meanwhile a guest reads a leaf every few milliseconds. The figures are the CPU time of each turn
 * (turns.ts).
 */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { openStore } from '../../src/store/open.ts'
import { request } from '../support/programs/daemon.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import type { Part } from './bench.ts'
import { TURNS, turnsOf, AskingGuest } from './guest.ts'
import { HYPERVISOR, recordOf, userDataOf } from './population.ts'
import { startImds, type Built } from './processes.ts'
import { quantile } from './report.ts'

const KIB = 1024
const MIB = 1024 * KIB
const DEFAULT_LIMIT = 16 * KIB
/**
 * How many instances, with how many bytes of user-data each. A size above the default limit needs
 * IMDS_USER_DATA_MAX_BYTES.
 */
const SIZES = [
  [1_000, 16 * KIB],
  [200, MIB],
  [64, 8 * MIB],
  [8, 16 * MIB],
] as const
const WARM_UP_MS = 2_000
const PHASE_TIMEOUT_MS = 60_000
const REGION = 'stalls'

/** The longest turns for each size, plain and encrypted. */
export const stalls: Part = async ({ built, redisUrl }) => {
  const rows: string[][] = []
  for (const isEncrypted of [false, true])
    for (const [count, bytes] of SIZES) {
      const name = `${count} x ${bytes >= MIB ? `${bytes / MIB} MiB` : `${bytes / KIB} KiB`}`
      const figures = await measure(built, redisUrl, count, bytes, isEncrypted)
      rows.push([`${name}${isEncrypted ? ', encrypted' : ''}`, ...figures])
    }
  return [
    {
      title: 'A resync of large user-data: turns of the event loop',
      columns: ['user-data', 'turns', 'CPU ms of a turn, p50', 'p99.9', 'longest', 'turns > 10 ms'],
      rows,
      notes: ['The aim: p99.9 of at most 10 ms at the default limit of user-data (16 KiB), 50 ms at any allowed one.'],
    },
  ]
}

async function measure(
  built: Built,
  redisUrl: string,
  count: number,
  bytes: number,
  isEncrypted: boolean,
): Promise<string[]> {
  const redis = new Redis(redisUrl)
  const directory = mkdtempSync(join(built.directory, 'stalls-'))
  const keys = join(directory, 'keys')
  const journal = join(directory, 'view.journal')
  writeFileSync(keys, keyLines('k1'))
  const limit = Math.max(bytes, DEFAULT_LIMIT)
  const env = {
    IMDS_STORE: redisUrl,
    IMDS_REGION: REGION,
    IMDS_HYPERVISOR: HYPERVISOR,
    IMDS_STATE_DIR: directory,
    IMDS_RESYNC_SECONDS: '1',
    IMDS_USER_DATA_MAX_BYTES: String(limit),
    TURNS_FILE: join(directory, 'turns'),
    ...(isEncrypted && { IMDS_RECORD_KEYS_FILE: keys }),
  }
  const publish = async (url: string, to: number) => {
    const store = await openStore({
      url,
      region: REGION,
      userDataMaxBytes: limit,
      recordKeysFile: isEncrypted ? keys : undefined,
    })
    for (let position = 0; position < to; position++) {
      const { kind } = await store.put(recordOf(position, REGION, 1), userDataOf(position, position === 0 ? 1 : bytes))
      if (kind !== 'published') throw new Error(`${position} could not be published: ${kind}`)
    }
    await store.close()
  }
  try {
    await redis.flushall()
    await publish(redisUrl, 1)
    await publish(`${redisUrl}/1`, count + 1)
    const imds = await startImds(built, env, 1, TURNS)
    const guest = new AskingGuest(imds.port)
    try {
      await guest.during(() => sleep(WARM_UP_MS))
      process.kill(imds.pid, 'SIGUSR2')
      const instances = async () =>
        (JSON.parse((await request(imds.operatorPort, '/readyz')).body.toString()) as { instances: number }).instances
      await guest.during(async () => {
        await redis.swapdb(0, 1)
        await untilSlowly(async () => (await instances()) === count + 1 && !existsSync(`${journal}.tmp`))
      })
      process.kill(imds.pid, 'SIGUSR2')
      const turns = await turnsOf(env.TURNS_FILE)
      return [
        String(turns.length),
        quantile(turns, 0.5).toFixed(2),
        quantile(turns, 0.999).toFixed(1),
        Math.max(...turns).toFixed(1),
        String(turns.filter((ms) => ms > 10).length),
      ]
    } finally {
      guest.close()
      await imds.stop()
    }
  } finally {
    await redis.flushall()
    redis.disconnect()
    rmSync(directory, { recursive: true })
  }
}

/** Waits until a condition holds. It checks rarely, so that the checks are no load. */
async function untilSlowly(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const deadline = performance.now() + PHASE_TIMEOUT_MS; !(await condition());) {
    if (performance.now() > deadline) throw new Error(`the phase did not end within ${PHASE_TIMEOUT_MS / 1000} s`)
    await sleep(100)
  }
}
