/**
 * The longest turns of the daemon's event loop while it reads, writes or restores large user-data: during a turn,
 * guests wait.
 *
 * Each size of user-data, plain and encrypted, has three phases:
 *
 * - resync: a running daemon has one instance; then its database is swapped for one with many more (SWAPDB, so there is
 *   no notice). It ends when all of them are in the view, which they enter when they are in the journal, and no rewrite is
 *   being written.
 * - rewrite: one small instance gets other user-data, and the whole journal is written again, without what it had.
 * - start: from that journal, without Redis. It ends with the first response.
 *
 * In the first two phases a guest reads a leaf every few milliseconds. The figures are the CPU time of each turn
 * (turns.ts), the guest's longest wait, and the peak of resident memory.
 */
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { openStore } from '../../src/store/open.ts'
import { request, until } from '../support/programs/daemon.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { freePort } from '../support/redis/redis.ts'
import type { Part } from './bench.ts'
import { PATH, TURNS, turnsOf, WatchingGuest } from './guest.ts'
import { HYPERVISOR, recordOf, userDataOf } from './population.ts'
import { resetPeak, peakMib, residentMib, startImds, startProcess, type Built } from './processes.ts'
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

/** The longest turns and the peak of memory in each phase. */
export const stalls: Part = async ({ built, redisUrl }) => {
  const rows: string[][] = []
  for (const isEncrypted of [false, true]) {
    for (const [count, bytes] of SIZES) {
      const name = `${count} x ${bytes >= MIB ? `${bytes / MIB} MiB` : `${bytes / KIB} KiB`}${isEncrypted ? ', encrypted' : ''}`
      const report = (phase: string, figures: readonly string[]) => rows.push([`${name}: ${phase}`, ...figures])
      await measure(built, redisUrl, count, bytes, isEncrypted, report).catch((error: unknown) => {
        // the build to compare may never complete a resync
        report('failed', [(error as Error).message])
      })
    }
  }
  return [
    {
      title: 'Large user-data: turns of the event loop, and memory',
      columns: [
        'user-data',
        'turns',
        'CPU ms of a turn, p50',
        'p99.9',
        'longest',
        'turns > 10 ms',
        'longest wait, ms',
        'user-data MiB',
        'peak MiB more',
      ],
      rows,
      notes: [
        'The aim of resync and rewrite: p99.9 of at most 10 ms at the default limit of user-data (16 KiB), 50 ms at any allowed one.',
        'A start loads the program and reads the journal in one turn, before the daemon listens. Its longest wait is the time to the first response.',
        'peak MiB more: the peak minus the resident memory before the phase; for a start, the whole peak.',
      ],
    },
  ]
}

async function measure(
  built: Built,
  redisUrl: string,
  count: number,
  bytes: number,
  isEncrypted: boolean,
  report: (phase: string, figures: readonly string[]) => void,
): Promise<void> {
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
  const publish = async (url: string, from: number, to: number, revision: number) => {
    const store = await openStore({
      url,
      region: REGION,
      userDataMaxBytes: limit,
      recordKeysFile: isEncrypted ? keys : undefined,
    })
    for (let position = from; position < to; position++) {
      const { kind } = await store.put(
        recordOf(position, REGION, revision),
        userDataOf(position, position === 0 ? revision : bytes),
      )
      if (kind !== 'published') throw new Error(`${position} could not be published: ${kind}`)
    }
    await store.close()
  }
  const userDataMib = ((count * bytes) / MIB).toFixed(0)
  try {
    await redis.flushall()
    await publish(redisUrl, 0, 1, 1)
    await publish(`${redisUrl}/1`, 0, count + 1, 1)
    const imds = await startImds(built, env, 1, { nodeArgs: TURNS })
    const guest = new WatchingGuest(imds.port)
    try {
      await guest.during(() => sleep(WARM_UP_MS))
      const phase = async (name: string, task: () => Promise<unknown>) => {
        const beforeMib = residentMib(imds.pid)
        resetPeak(imds.pid)
        process.kill(imds.pid, 'SIGUSR2')
        const longestMs = Math.max(...(await guest.during(task)))
        process.kill(imds.pid, 'SIGUSR2')
        report(name, [
          ...figures(await turnsOf(env.TURNS_FILE)),
          longestMs.toFixed(0),
          userDataMib,
          (peakMib(imds.pid) - beforeMib).toFixed(0),
        ])
      }
      const isAtRest = () => !existsSync(`${journal}.tmp`)
      await phase('resync', async () => {
        await redis.swapdb(0, 1)
        await untilSlowly(
          async () =>
            (JSON.parse((await request(imds.operatorPort, '/readyz')).body.toString()) as { instances: number })
              .instances ===
            count + 1,
        )
        await untilSlowly(isAtRest)
      })
      const { ino } = statSync(journal)
      await phase('rewrite', async () => {
        await publish(redisUrl, 0, 1, 2)
        await untilSlowly(() => statSync(journal).ino !== ino && isAtRest())
      })
    } finally {
      guest.close()
      await imds.stop()
    }
    report('start', [...(await startFromJournal(built, env, userDataMib))])
  } finally {
    await redis.flushall()
    redis.disconnect()
    rmSync(directory, { recursive: true })
  }
}

async function startFromJournal(
  built: Built,
  env: Readonly<Record<string, string>> & { readonly TURNS_FILE: string },
  userDataMib: string,
): Promise<string[]> {
  const port = await freePort()
  const startedMs = performance.now()
  const imds = startProcess(
    [...TURNS, built.main],
    {
      ...env,
      IMDS_STORE: 'redis://127.0.0.1:1',
      IMDS_LISTEN: `127.0.0.1:${port}`,
      IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
      IMDS_OPERATOR_SOCKET: join(built.directory, 'operator.sock'),
      TURNS_FROM_START: '1',
    },
    'ignore',
  )
  try {
    await until(
      () =>
        request(port, PATH).then(
          ({ status }) => status === 200,
          () => false,
        ),
      'an answer',
      PHASE_TIMEOUT_MS,
    )
    const tookMs = performance.now() - startedMs
    process.kill(imds.pid, 'SIGUSR2')
    return [...figures(await turnsOf(env.TURNS_FILE)), tookMs.toFixed(0), userDataMib, peakMib(imds.pid).toFixed(0)]
  } finally {
    await imds.stop()
  }
}

function figures(turns: readonly number[]): string[] {
  return [
    String(turns.length),
    quantile(turns, 0.5).toFixed(2),
    quantile(turns, 0.999).toFixed(1),
    Math.max(...turns).toFixed(1),
    String(turns.filter((ms) => ms > 10).length),
  ]
}

/** Waits until a condition holds. It checks rarely, so that the checks are no load. */
async function untilSlowly(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const deadline = performance.now() + PHASE_TIMEOUT_MS; !(await condition());) {
    if (performance.now() > deadline) throw new Error(`the phase did not end within ${PHASE_TIMEOUT_MS / 1000} s`)
    await sleep(100)
  }
}
