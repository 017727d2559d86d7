/**
 * The cost of following the store: the time of a resync, and commands per second while nothing changes.
 *
 * The time is the daemon's metric. "All changed" is the first resync of
 * an empty view, which reads every instance.
 */
import { Redis } from 'ioredis'
import { request, until } from '../support/programs/daemon.ts'
import type { Part } from './bench.ts'
import { populate } from './population.ts'
import { startImds } from './processes.ts'

const INSTANCES = 10_000
/** The second resync comes after three quarters of this time, when the first one of the largest view has ended. */
const RESYNC_SECONDS = 10
const IDLE_SECONDS = 60

/** Resyncs of a large view, and the commands of an idle daemon. */
export const resync: Part = async ({ built, redisUrl }) => {
  const redis = new Redis(redisUrl)
  const ms: number[] = []
  let commandsPerSecond: string
  try {
    const env = { ...(await populate(redisUrl, 'resync', INSTANCES)), IMDS_RESYNC_SECONDS: String(RESYNC_SECONDS) }
    const large = await startImds(built, env, INSTANCES)
    const metric = async (name: string) =>
      Number(
        new RegExp(`^${name} (.*)$`, 'm').exec((await request(large.operatorPort, '/metrics')).body.toString())?.[1],
      )
    const completed = 'imds_resyncs_total{result="completed"}'.replace(/[{}]/g, '\\$&')
    ms.push((await metric('imds_resync_duration_seconds')) * 1000)
    const already = await metric(completed)
    if (already !== 1)
      throw new Error(`${already} resyncs have completed, not one: the metric is not that of the first`)
    await until(async () => (await metric(completed)) > already, 'another resync', 60_000)
    ms.push((await metric('imds_resync_duration_seconds')) * 1000)
    await large.stop()
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
      columns: ['instances', 'all changed, ms', 'unchanged, ms'],
      rows: [[String(INSTANCES), ...ms.map((each) => each.toFixed(0))]],
      notes: [
        `An idle daemon sends Redis ${commandsPerSecond} commands a second: heartbeats of two connections, and a resync a minute.`,
      ],
    },
  ]
}

async function stat(redis: Redis, section: string, name: string): Promise<number> {
  return Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(await redis.info(section))?.[1])
}
