/**
 * Runs the commands of a publisher on the server that has the region, and repeats a command on a new connection while
 * the region moves from one server to another.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import { StoreUnavailable } from '../publisher.ts'
import { close, type RedisConnection, type RedisSettings } from './connection.ts'
import { IndexTooLarge } from './lengths.ts'
import { isDenied, reasonOf } from './reasons.ts'
import { connectToRegion } from './region-server.ts'
import type { ScriptAnswer } from './script.ts'

/** How long a command waits for a failover, or for a slot that a Cluster moves. */
const FAILOVER_TIMEOUT_MS = 10_000
const RETRY_MS = 200
/** Errors of a server that cannot take the command now, or no longer has the region. publish.lua raises the last one. */
const TRANSIENT = /^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|READONLY|NOREPLICAS|LOADING|MASTERDOWN) |non local key/
/** Errors of a server that takes no changes until its operator makes room. */
const NO_SPACE = /^(OOM|MISCONF) /

/** A connection that also runs publish.lua. */
export type PublishingRedis = Redis & {
  imdsPublish(key: string, ...args: (string | Buffer)[]): Promise<ScriptAnswer>
}

export interface RegionClient {
  /** Rejects when the store cannot be reached. */
  open(): Promise<void>
  /** Runs a task that may run twice. */
  run<T>(task: (redis: PublishingRedis) => Promise<T>): Promise<T>
  close(): Promise<void>
}

/** `key`: the key by which the server of the region is found. `script`: the text of publish.lua. */
export function buildRegionClient(settings: RedisSettings, key: string, script: string): RegionClient {
  let connection: Promise<RedisConnection> | undefined
  let isClosed = false

  const connect = async () => {
    const opened = await connectToRegion(settings, key, 'imds-publisher')
    opened.redis.defineCommand('imdsPublish', { lua: script, numberOfKeys: 1 })
    return opened
  }
  /** Returns the connection, and opens one if there is none. Rejects with the reason. */
  const connected = () => {
    if (isClosed) return Promise.reject(new Error('the publisher is closed'))
    return (connection ??= connect())
  }
  return {
    open: async () => {
      try {
        await connected()
      } catch (error) {
        throw unusable(error)
      }
    },
    run: async (task) => {
      for (const deadlineMs = performance.now() + FAILOVER_TIMEOUT_MS; ;) {
        const connecting = connected()
        try {
          return await task((await connecting).redis as PublishingRedis)
        } catch (error) {
          const { name, message } = error as Error
          if (
            error instanceof IndexTooLarge ||
            (name === 'ReplyError' && (isDenied(error as Error) || NO_SPACE.test(message)))
          )
            throw unusable(error)
          if (isClosed || (name === 'ReplyError' && !TRANSIENT.test(message))) throw error
          connecting.then(close, () => undefined) // there is none
          if (connection === connecting) connection = undefined
          if (performance.now() > deadlineMs) throw unusable(error)
          await sleep(RETRY_MS * (0.5 + Math.random()))
        }
      }
    },
    close: async () => {
      isClosed = true
      const last = await connection?.catch(() => undefined)
      if (last !== undefined) close(last)
    },
  }
}

function unusable(error: unknown): StoreUnavailable {
  return new StoreUnavailable(`cannot use the store: ${reasonOf(error)}`, { cause: error })
}
