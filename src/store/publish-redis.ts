/**
 * The write side in Redis: the one place that changes it, through publish.lua alone.
 */
import { readFileSync } from 'node:fs'
import type { Redis } from 'ioredis'
import type { Instance } from '../metadata/instance.ts'
import { connect, type RedisSettings } from './connection.ts'
import { keysOf, type Keys } from './keys.ts'
import { publish, type Backend, type Listed, type Publisher, type Published, type PutResult, type RemoveResult, type UserDataChange, type Written } from './publish.ts'

const SCRIPT = readFileSync(new URL('publish.lua', import.meta.url), 'utf8')

type ScriptAnswer = readonly [verdict: string, ...details: string[]]

/** Connects to a region's store for writing. Rejects when it cannot be reached within 5 s. */
export async function openRedisPublisher(settings: RedisSettings, region: string, userDataMaxBytes: number): Promise<Publisher> {
  const redis = connect(settings, 'imds-publisher')
  await firstConnection(redis)
  redis.defineCommand('imdsPublish', { lua: SCRIPT, numberOfKeys: 1 })
  return new RedisPublisher(settings, redis, keysOf(region), userDataMaxBytes)
}

/** Waits for a connection to be ready; closes it and rejects with what is wrong where that fails. */
async function firstConnection(redis: Redis): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    let lastError = 'the connection was closed'
    redis.once('ready', resolve)
    redis.on('error', (error: Error) => { lastError = error.message === '' ? String((error as NodeJS.ErrnoException).code) : error.message })
    redis.once('close', () => {
      redis.disconnect()
      reject(new Error(`cannot use the store: ${lastError}`))
    })
  })
}

class RedisPublisher implements Publisher, Backend {
  readonly #settings: RedisSettings
  readonly #redis: Redis
  readonly #keys: Keys
  readonly #userDataMaxBytes: number

  constructor(settings: RedisSettings, redis: Redis, keys: Keys, userDataMaxBytes: number) {
    this.#settings = settings
    this.#redis = redis
    this.#keys = keys
    this.#userDataMaxBytes = userDataMaxBytes
  }

  put(document: unknown, userData: UserDataChange = 'keep'): Promise<PutResult> {
    return publish(this, document, userData, this.#userDataMaxBytes)
  }

  async get(id: string): Promise<Published | undefined> {
    const [record, userData] = await this.#redis.hmgetBuffer(this.#keys.instance(id), 'record', 'user-data')
    return record == null ? undefined : { document: JSON.parse(record.toString()) as unknown, userData: userData ?? null }
  }

  async write(_instance: Instance, text: string, userData: UserDataChange): Promise<Written> {
    const [verdict, ...details] = await this.#script('put', text, ...typeof userData === 'string' ? [userData] : ['set', Buffer.from(userData)])
    if (verdict === 'published' || verdict === 'unchanged') return verdict
    const [reason, a = '', b = '', c = ''] = details
    if (reason === 'stale') return { result: 'stale', revision: Number(a) }
    if (reason === 'address-owned') return { result: 'address-owned', network: a, address: b, owner: c }
    if (reason === 'user-data') return 'user-data-changed'
    throw new Error(`the store refused the record: ${details.join(' ')}`)
  }

  async remove(id: string, revision?: number): Promise<RemoveResult> {
    const [verdict, ...details] = await this.#script('remove', id, ...revision === undefined ? [] : [String(revision)])
    if (verdict === 'removed' || verdict === 'unchanged') return { result: verdict, revision: Number(details[0]) }
    if (details[0] === 'stale') return { result: 'stale', revision: Number(details[1]) }
    throw new Error(`the store refused: ${details.join(' ')}`)
  }

  async list(): Promise<readonly Listed[]> {
    const entries = await this.#redis.hgetall(this.#keys.instances)
    return Object.entries(entries).map(([id, text]) => listed(id, text)).sort((a, b) => a.id < b.id ? -1 : 1)
  }

  async watch(changed: (id: string) => void): Promise<() => Promise<void>> {
    const subscriber = connect(this.#settings, 'imdsctl-watch')
    await firstConnection(subscriber)
    const last = new Map<string, number>()
    subscriber.on('pmessage', (_pattern: string, _channel: string, id: string) => {
      const now = performance.now()
      if (now - (last.get(id) ?? -Infinity) < 50) return // during a migration two hypervisors are told of one change
      last.set(id, now)
      changed(id)
    })
    await subscriber.psubscribe(this.#keys.notices('*'))
    return async () => {
      subscriber.disconnect()
      await Promise.resolve()
    }
  }

  async close(): Promise<void> {
    this.#redis.disconnect()
    await Promise.resolve()
  }

  #script(...args: (string | Buffer)[]): Promise<ScriptAnswer> {
    const redis = this.#redis as Redis & { imdsPublish(key: string, ...args: (string | Buffer)[]): Promise<ScriptAnswer> }
    return redis.imdsPublish(this.#keys.region, ...args)
  }
}

/** The script writes an empty list as `{}`: its JSON knows no difference. */
function listed(id: string, text: string): Listed {
  const { revision, addresses, hypervisors } = JSON.parse(text) as { revision: string, addresses: object, hypervisors: object }
  return { id, revision: Number(revision), hypervisors: Object.values(hypervisors) as string[], addresses: Object.values(addresses) as string[] }
}
