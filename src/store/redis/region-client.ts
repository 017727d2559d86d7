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

export class RegionClient {
  readonly #settings: RedisSettings
  readonly #key: string
  readonly #script: string
  #connection: Promise<RedisConnection> | undefined
  #isClosed = false

  /** `key`: the key by which the server of the region is found. `script`: the text of publish.lua. */
  constructor(settings: RedisSettings, key: string, script: string) {
    this.#settings = settings
    this.#key = key
    this.#script = script
  }

  /** Rejects when the store cannot be reached. */
  async open(): Promise<void> {
    try {
      await this.#connected()
    } catch (error) {
      throw unusable(error)
    }
  }

  /** Runs a task that may run twice. */
  async run<T>(task: (redis: PublishingRedis) => Promise<T>): Promise<T> {
    for (const deadlineMs = performance.now() + FAILOVER_TIMEOUT_MS; ;) {
      const connecting = this.#connected()
      try {
        return await task((await connecting).redis as PublishingRedis)
      } catch (error) {
        const { name, message } = error as Error
        if (
          error instanceof IndexTooLarge ||
          (name === 'ReplyError' && (isDenied(error as Error) || NO_SPACE.test(message)))
        )
          throw unusable(error)
        if (this.#isClosed || (name === 'ReplyError' && !TRANSIENT.test(message))) throw error
        connecting.then(close, () => undefined) // there is none
        if (this.#connection === connecting) this.#connection = undefined
        if (performance.now() > deadlineMs) throw unusable(error)
        await sleep(RETRY_MS * (0.5 + Math.random()))
      }
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    const connection = await this.#connection?.catch(() => undefined)
    if (connection !== undefined) close(connection)
  }

  /** Returns the connection, and opens one if there is none. Rejects with the reason. */
  #connected(): Promise<RedisConnection> {
    if (this.#isClosed) return Promise.reject(new Error('the publisher is closed'))
    this.#connection ??= this.#connect()
    return this.#connection
  }

  async #connect(): Promise<RedisConnection> {
    const connection = await connectToRegion(this.#settings, this.#key, 'imds-publisher')
    connection.redis.defineCommand('imdsPublish', { lua: this.#script, numberOfKeys: 1 })
    return connection
  }
}

function unusable(error: unknown): StoreUnavailable {
  return new StoreUnavailable(`cannot use the store: ${reasonOf(error)}`, { cause: error })
}
