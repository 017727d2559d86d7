/**
 * A large region: 100,000 servers on 5,000 hypervisors, of 1,000 accounts (a tenth of each with `--quick`). What it
 * takes in PostgreSQL and in Redis, how long a rebuild takes, what happens when all daemons follow a store that comes
 * back, and what the frequent requests cost.
 *
 * PostgreSQL is the embedded one with its default settings. Its rows are made by SQL (large-region.ts). The rebuild and
 * imds-api are the real programs. The daemons are simulated (simulated-daemons.ts).
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync } from 'node:fs'
import { readdir, rm } from 'node:fs/promises'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { migrate } from '../../src/imds-api/database/migrate.ts'
import { openStore } from '../../src/store/open.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { aLargeRegion, fillRegion, type RegionSize } from '../support/fixtures/large-region.ts'
import { ONE } from '../support/fixtures/region.ts'
import { apply, startState } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import type { Part } from './bench.ts'
import { recordOf, userDataOf } from './population.ts'
import { cpuSeconds, advanceDatabase, peakMib, SERVER_CORE } from './processes.ts'
import { quantile, type Table } from './report.ts'
import { measureRequests } from './scale-requests.ts'
import type { Progress } from './simulated-daemons.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const REGION = 'bench-scale'
const FULL: RegionSize = { accounts: 1_000, hypervisors: 5_000, servers: 100_000, ofAccount: 10_000 }
const QUICK: RegionSize = { accounts: 100, hypervisors: 500, servers: 10_000, ofAccount: 1_000 }
/** Two connections of each daemon, and some for publishers. The default of Redis is 10,000. */
const MAX_CLIENTS = 15_000
const PUT_INTERVAL_MS = 20
const MAX_MS = 900_000

export const scale: Part = async ({ built, effort }) => {
  const size = effort.seconds > 2 ? FULL : QUICK
  const load = loadavg()[0]!.toFixed(1)
  const directory = join(built.directory, 'scale')
  mkdirSync(directory)
  for (const one of [built.directory, directory]) chmodSync(one, 0o711)
  const state = join(directory, 'state')
  const redis = await startRedis(undefined, ['--appendonly', 'yes', '--maxclients', String(MAX_CLIENTS)])
  try {
    const env = {
      IMDS_API_DATABASE: 'embedded',
      IMDS_API_STATE_DIR: state,
      IMDS_STORE: redis.url,
      IMDS_REGION: REGION,
      IMDS_API_AUDIT_FILE: '/dev/null',
    }
    const databaseBytes = await fill(state, size)
    const redisBefore = cpuSeconds(redis.process().pid!)
    const rebuilt = await rebuild(env, state)
    const redisSeconds = cpuSeconds(redis.process().pid!) - redisBefore
    const memory = await memoryOf(redis)
    const storms = await measureStorms(redis, size, () => rebuild(env, state))
    const requests = await measureRequests(env, state)
    const title = `A region of ${size.servers} servers, ${size.hypervisors} hypervisors, ${size.accounts} accounts`
    const perServer = (bytes: number) => (bytes / size.servers / 1024).toFixed(2)
    return [
      {
        title,
        columns: ['', 'MiB', 'KiB a server'],
        rows: [
          ['PostgreSQL', mib(databaseBytes), perServer(databaseBytes)],
          ['Redis, used_memory', mib(memory.used), perServer(memory.used)],
          ['Redis, the hash `instances`', mib(memory.index), perServer(memory.index)],
          ['Redis, resident', mib(memory.resident), perServer(memory.resident)],
          ['Redis, append-only files', mib(memory.files), perServer(memory.files)],
        ],
        notes: [
          `The load average before the run: ${load}. A server has 1 KiB of user-data; every second one a cloud IP.`,
        ],
      },
      {
        title: 'imds-api reconcile into an empty Redis',
        columns: ['', 'figure'],
        rows: [
          ['s', (rebuilt.ms / 1_000).toFixed(1)],
          ['servers a second', (size.servers / (rebuilt.ms / 1_000)).toFixed(0)],
          ['CPU time of imds-api, s', rebuilt.cpuSeconds.toFixed(1)],
          ['CPU time of Redis, s', redisSeconds.toFixed(1)],
          ['peak memory of imds-api, MiB', rebuilt.peakMib.toFixed(0)],
        ],
        notes: [],
      },
      ...storms,
      requests,
    ] satisfies Table[]
  } finally {
    await redis.stop()
  }
}

const mib = (bytes: number) => (bytes / 2 ** 20).toFixed(1)

/** Makes the region. Returns the bytes of the database. */
async function fill(state: string, size: RegionSize): Promise<number> {
  const { db, pool, close } = await startState(state)
  try {
    await migrate(db)
    await apply({ db }, aLargeRegion(REGION))
    await fillRegion(pool, ONE, size)
    const { rows } = await pool.query<{ bytes: string }>('select pg_database_size(current_database()) as bytes')
    return Number(rows[0]!.bytes)
  } finally {
    await close()
  }
}

/** Runs `imds-api reconcile` on its core, and PostgreSQL on the other. */
async function rebuild(env: Readonly<Record<string, string>>, state: string) {
  const startedMs = performance.now()
  const child = spawn(
    'taskset',
    ['-c', SERVER_CORE, process.execPath, join(ROOT, 'src/imds-api/main.ts'), 'reconcile'],
    {
      env: { PATH: process.env['PATH'], ...env },
      stdio: ['ignore', 'ignore', 'inherit'],
    },
  )
  const seen = { cpuSeconds: 0, peakMib: 0 }
  const watch = setInterval(() => {
    try {
      const now = { cpuSeconds: cpuSeconds(child.pid!), peakMib: peakMib(child.pid!) }
      if (!Number.isNaN(now.peakMib)) Object.assign(seen, now)
    } catch {
      // it has ended
    }
  }, 200)
  const ended = once(child, 'exit')
  await advanceDatabase(state)
  const [status] = (await ended) as [number | null]
  clearInterval(watch)
  if (status !== 0) throw new Error(`reconcile ended with ${String(status)}`)
  return { ms: performance.now() - startedMs, ...seen }
}

async function memoryOf(redis: TestRedis) {
  const info = `${await redis.client.info('memory')}${await redis.client.info('persistence')}`
  const field = (name: string) => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(info)?.[1])
  const index = Number(await redis.client.call('MEMORY', 'USAGE', keysOf(REGION).instances, 'SAMPLES', 0))
  return { used: field('used_memory'), index, resident: field('used_memory_rss'), files: field('aof_current_size') }
}

/**
 * All daemons begin with empty views; then Redis is killed and starts again, first with its files, and then without
 * them, so that `refill` has to publish the region again.
 */
async function measureStorms(
  redis: TestRedis,
  { hypervisors, servers }: RegionSize,
  refill: () => Promise<{ readonly ms: number }>,
): Promise<Table[]> {
  const script = join(ROOT, 'test/bench/simulated-daemons.ts')
  const args = ['-c', SERVER_CORE, process.execPath, '--max-old-space-size=4096', script]
  const before = await measurePuts(redis, () => sleep(3_000))
  const child = spawn('taskset', [...args, redis.url, REGION, String(hypervisors)], {
    env: { PATH: process.env['PATH'] },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  let progress: Progress = { ready: 0, resynced: 0, instances: 0 }
  createInterface({ input: child.stdout }).on('line', (line) => {
    progress = JSON.parse(line) as Progress
  })
  try {
    const all = () => progress.ready === hypervisors && progress.instances >= servers
    const cold = await measurePuts(redis, () => until(all, 'all views', MAX_MS))
    const connections = Number(/^connected_clients:(\d+)/m.exec(await redis.client.info('clients'))?.[1])
    await redis.kill()
    child.stdin.write('\n')
    const killedMs = performance.now()
    await redis.restart()
    await until(
      () => redis.client.info('persistence').then((info) => /^loading:0/m.test(info)), // and not async_loading
      'the files',
      MAX_MS,
    )
    const loadMs = performance.now() - killedMs
    const warm = await measurePuts(redis, () => until(() => progress.resynced === hypervisors, 'resyncs', MAX_MS))
    const [, files] = (await redis.client.config('GET', 'dir')) as [string, string]
    await redis.kill()
    for (const name of await readdir(files)) await rm(join(files, name), { recursive: true })
    child.stdin.write('\n')
    let least = Infinity
    const watch = setInterval(() => {
      least = Math.min(least, progress.instances)
    }, 100)
    await redis.restart()
    const emptiedMs = performance.now()
    const refilled = await refill()
    await until(() => progress.resynced === hypervisors, 'resyncs', MAX_MS)
    const followedMs = performance.now() - emptiedMs
    clearInterval(watch)
    const daemonsMib = peakMib(child.pid!)
    const row = (name: string, { ms, redisSeconds, puts }: Measured) => [
      name,
      (ms / 1_000).toFixed(1),
      redisSeconds.toFixed(1),
      ...[0.5, 0.99, 1].map((share) => quantile(puts, share).toFixed(1)),
    ]
    return [
      {
        title: `${hypervisors} simulated daemons, ${connections} connections`,
        columns: ['', 's', 'CPU of Redis, s', 'a put meanwhile: median, ms', 'p99', 'longest'],
        rows: [
          row('nothing (before)', before),
          row('all start with empty views', cold),
          row('Redis was killed, and is back with its files', warm),
        ],
        notes: [
          `After the kill, Redis needed ${(loadMs / 1_000).toFixed(1)} s to read its append-only files; the time of the resyncs begins after that.`,
          `Redis was killed again and came back empty: imds-api reconcile took ${(refilled.ms / 1_000).toFixed(1)} s, and all daemons had resynced after ${(followedMs / 1_000).toFixed(1)} s. Their views had ${least} instances at least meanwhile.`,
          `The daemons share one process with ${daemonsMib.toFixed(0)} MiB and one core, which bounds the times.`,
        ],
      },
    ]
  } finally {
    child.kill()
  }
}

interface Measured {
  readonly ms: number
  readonly redisSeconds: number
  readonly puts: readonly number[]
}

/** Publishes one instance again and again, while something else happens. */
async function measurePuts(redis: TestRedis, work: () => Promise<unknown>): Promise<Measured> {
  const store = await openStore({ url: redis.url, region: REGION })
  const puts: number[] = []
  let isOver = false as boolean // TypeScript does not see that it changes meanwhile
  const publishing = (async () => {
    for (let revision = Date.now(); !isOver; revision++) {
      const sentMs = performance.now()
      await store.put(recordOf(0, REGION, revision, { hypervisor: 'other' }), userDataOf(0))
      puts.push(performance.now() - sentMs)
      await sleep(PUT_INTERVAL_MS)
    }
  })()
  const [startedMs, pid] = [performance.now(), redis.process().pid!]
  const cpuBefore = cpuSeconds(pid)
  await work()
  const measured = { ms: performance.now() - startedMs, redisSeconds: cpuSeconds(pid) - cpuBefore, puts }
  isOver = true
  await publishing
  await store.close()
  return measured
}
