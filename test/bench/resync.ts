/**
 * The cost of following the store: time and bytes of a resync, and commands per second while nothing changes.
 *
 * The time is the daemon's metric, the bytes are those that Redis counts as sent. "All changed" is the first resync of
 * an empty view, which reads every instance.
 */
import { Redis } from 'ioredis'
import { request, until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { populate } from './population.ts'
import { residentMib, startImds } from './processes.ts'

/** How many instances, with how many bytes of user-data each. */
const SIZES = [
  [500, 1_024],
  [10_000, 1_024],
] as const
/** The second resync comes after three quarters of this time, when the first one of the largest view has ended. */
const RESYNC_SECONDS = 10
const IDLE_SECONDS = 60

/** Resyncs of a small and a large view, and the commands of an idle daemon. */
export const resync: Part = async ({ built, redisUrl }) => {
  const redis = new Redis(redisUrl)
  const rows: string[][] = []
  let commandsPerSecond: string
  try {
    for (const [size, userDataBytes] of SIZES) {
      const env = {
        ...(await populate(redisUrl, `resync${size}-${userDataBytes}`, size, { userDataBytes })),
        IMDS_RESYNC_SECONDS: String(RESYNC_SECONDS),
      }
      const sentBefore = await stat(redis, 'stats', 'total_net_output_bytes')
      const imds = await startImds(built, env, size)
      const allBytes = (await stat(redis, 'stats', 'total_net_output_bytes')) - sentBefore
      const metric = async (name: string) =>
        Number(
          new RegExp(`^${name} (.*)$`, 'm').exec((await request(imds.operatorPort, '/metrics')).body.toString())?.[1],
        )
      const allSeconds = await metric('imds_resync_duration_seconds')
      const completed = 'imds_resyncs_total{result="completed"}'.replace(/[{}]/g, '\\$&')
      const already = await metric(completed)
      if (already !== 1)
        throw new Error(`${already} resyncs have completed, not one: the metric is not that of the first`)
      const before = await stat(redis, 'stats', 'total_net_output_bytes')
      await until(async () => (await metric(completed)) >= already + 4, 'four resyncs', 60_000)
      const bytes = ((await stat(redis, 'stats', 'total_net_output_bytes')) - before) / 4
      rows.push([
        String(size),
        String(userDataBytes / 1024),
        (allSeconds * 1000).toFixed(0),
        (allBytes / 1024).toFixed(0),
        ((await metric('imds_resync_duration_seconds')) * 1000).toFixed(1),
        (bytes / 1024).toFixed(0),
        residentMib(imds.pid).toFixed(0),
      ])
      await imds.stop()
    }
    const imds = await startImds(built, await populate(redisUrl, 'idle', 500), 500)
    const commands = await stat(redis, 'stats', 'total_commands_processed')
    await new Promise((resolve) => setTimeout(resolve, IDLE_SECONDS * 1000))
    commandsPerSecond = (
      ((await stat(redis, 'stats', 'total_commands_processed')) - commands - 1) /
      IDLE_SECONDS
    ).toFixed(2)
    await imds.stop()
  } finally {
    redis.disconnect()
  }
  return [
    {
      title: 'Following the store',
      columns: [
        'instances',
        'user-data KiB',
        'all changed, ms',
        'KiB from Redis',
        'unchanged, ms',
        'KiB from Redis',
        'resident MiB',
      ],
      rows,
      notes: [
        `An idle daemon sends Redis ${commandsPerSecond} commands a second: heartbeats of two connections, and a resync a minute.`,
      ],
    },
  ]
}

async function stat(redis: Redis, section: string, name: string): Promise<number> {
  return Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(await redis.info(section))?.[1])
}
