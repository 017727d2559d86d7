/** The daemon that is fuzzed: a child process with a Redis, with checks of its process, log, metrics and memory. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { collectable } from '../support/programs/garbage.ts'
import { exchange } from '../support/fixtures/socket.ts'
import { startRedis } from '../support/redis/redis.ts'
import { MARK } from './inputs.ts'
import { foreignCanaries, populate, type FuzzGuest } from './population.ts'

/** Memory in use after a garbage collection, in bytes. */
export interface Memory {
  readonly heap: number
  readonly resident: number
}

/** A running host. */
export interface FuzzHost {
  readonly daemon: TestDaemon
  readonly guests: readonly FuzzGuest[]
  /** A session token of the first guest. */
  readonly token: string
  /**
   * Waits until all connections are closed, then collects the garbage and measures memory. Rejects if connections stay
   * open.
   */
  settle(): Promise<Memory>
  /** Describes what is wrong with the process, its log and its metrics. */
  problems(): Promise<string[]>
  stop(): Promise<void>
}

const GUESTS = 320
/** File descriptors that are not connections but may be open at a check, such as a file of the journal. */
const SPARE_DESCRIPTORS = 3

/** Starts a host in an empty directory. */
export async function startFuzzHost(directory: string): Promise<FuzzHost> {
  const redis = await startRedis(undefined)
  const errors = join(directory, 'errors')
  const guests = await populate(redis.url, GUESTS)
  const { env, within, collect } = await collectable(errors)
  const daemon = await startDaemon(
    undefined,
    { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1', ...env },
    within,
  )
  const { pid } = daemon.process
  const ready = async () => (await daemon.operator('/readyz')).status === 200
  await until(ready, 'the daemon to have read its store')
  const descriptors = () => readdirSync(`/proc/${String(pid)}/fd`).length
  const minted = await exchange(
    daemon.guestPort,
    'PUT /latest/api/token HTTP/1.0\r\nX-aws-ec2-metadata-token-ttl-seconds: 21600\r\n\r\n',
    { localAddress: guests[0]!.address },
  )
  await sleep(500) // until the journal is written
  const idle = descriptors()

  return {
    daemon,
    guests,
    token: minted.body,
    settle: async () => {
      await until(
        () => descriptors() <= idle + SPARE_DESCRIPTORS,
        `${descriptors()} file descriptors to be ${idle} again`,
        25_000,
      )
      await collect()
      await sleep(200)
      await collect()
      return {
        heap: await daemon.metric('nodejs_heap_size_used_bytes'),
        resident: await daemon.metric('process_resident_memory_bytes'),
      }
    },
    problems: async () => {
      if (daemon.process.exitCode !== null || daemon.process.signalCode !== null)
        return [
          `the daemon ended: ${String(daemon.process.exitCode ?? daemon.process.signalCode)}\n${readFileSync(errors, 'utf8')}`,
        ]
      const metrics = (await daemon.operator('/metrics')).body.toString()
      const log = daemon.log.map((line) => JSON.stringify(line))
      const errorLines = readFileSync(errors, 'utf8')
        .split('\n')
        .filter((line) => !/^(?:|Debugger .*|For help, see: .*|Starting inspector .*)$/.test(line))
      return [
        ...log.filter((line) => /"level":"(?:error|fatal)"/.test(line)).map((line) => `in the log: ${line}`),
        ...log
          .filter((line) => foreignCanaries(line, '').length > 0 || line.includes(MARK) || line.includes(minted.body))
          .map((line) => `a record's or a request's bytes in the log: ${line}`),
        ...errorLines.map((line) => `on standard error: ${line}`),
        ...metrics
          .split('\n')
          .filter(
            (line) =>
              line.includes('reason="internal-error"') || line.includes(MARK) || foreignCanaries(line, '').length > 0,
          )
          .map((line) => `in the metrics: ${line}`),
      ]
    },
    stop: async () => {
      const status = await daemon.stop()
      await redis.stop()
      if (status !== 0) throw new Error(`the daemon's exit status was ${String(status)}`)
    },
  }
}
