/**
 * The write side in Redis. It changes the region only through publish.lua.
 */
import { readFileSync } from 'node:fs'
import type { Redis } from 'ioredis'
import type { Backend, RecordChange, RecordWriter, Written } from '../backend.ts'
import {
  EncryptingWriter,
  type Converted,
  type EncryptedValues,
  type EncryptedWritten,
  type StoredBytes,
  type ValueStore,
  type WriteOptions,
} from '../crypto/encrypting-writer.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import { readPublished } from '../crypto/stored.ts'
import { StorePublisher } from '../publish.ts'
import { parseTombstone } from '../seal.ts'
import { MAX_USER_DATA_BYTES } from '../settings.ts'
import type {
  AnnouncedHypervisor,
  Listed,
  Published,
  Publisher,
  Removed,
  RemoveOptions,
  RemoveResult,
} from '../publisher.ts'
import type { Fleet } from '../fleet.ts'
import { announcedHypervisors, announcementsOf, unannouncedOf } from './announcements.ts'
import { runPipeline, type RedisSettings } from './connection.ts'
import { RegionClient } from './region-client.ts'
import { RedisFleet } from './fleet.ts'
import { keysOf, type Keys } from './keys.ts'
import { checkIndex, formatTooLong, lengthCommands, lengthsOf } from './lengths.ts'
import {
  formatDigest,
  parseConverted,
  parsePut,
  parsePutEncrypted,
  parseRemoved,
  putArguments,
  putEncryptedArguments,
  removeArguments,
  valueArguments,
  type ScriptAnswer,
  type ScriptArguments,
} from './script.ts'
import { joinReports, withoutRemoved, type Reports } from '../../metadata/reports.ts'
import { reportCommands, reportsOf } from './reports.ts'

const SCRIPT = readFileSync(new URL('publish.lua', import.meta.url), 'utf8')
const NONE = Buffer.alloc(0)
const SCAN_BATCH = 1_000

/**
 * Connects to a region's store for writing. `cipher` undefined: records are plain. Rejects when the store cannot be
 * reached.
 */
export async function openRedisPublisher(
  settings: RedisSettings,
  region: string,
  userDataMaxBytes: number,
  cipher: RecordCipher | undefined,
): Promise<Publisher> {
  const client = new RegionClient(settings, keysOf(region).instances, SCRIPT)
  await client.open()
  const backend = new RedisBackend(client, region, cipher)
  return new StorePublisher(backend, userDataMaxBytes)
}

class RedisBackend implements Backend, RecordWriter, ValueStore {
  readonly region: string
  readonly noKeysReason = 'no record keys are configured'
  readonly fleet: Fleet
  readonly conversion: EncryptingWriter | undefined
  readonly #client: RegionClient
  readonly #keys: Keys
  readonly #cipher: RecordCipher | undefined
  /** The hypervisors of which an announcement was seen: it is not asked for again. */
  readonly #announced = new Set<string>()

  constructor(client: RegionClient, region: string, cipher: RecordCipher | undefined) {
    this.#cipher = cipher
    this.conversion = cipher && new EncryptingWriter(cipher, this)
    this.#client = client
    this.region = region
    this.#keys = keysOf(region)
    this.fleet = new RedisFleet(client, this.#keys)
  }

  /** Needs no lock: each run of the script is atomic, and refuses a write if the instance has changed since. */
  transaction<T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> {
    return task(this.conversion ?? this)
  }

  async get(id: string): Promise<Published | undefined> {
    return readPublished(id, await this.values(id), this.#cipher)
  }

  /** Only reports by hypervisors that the record names are read. */
  async reportsOf(ids: readonly string[]): Promise<ReadonlyMap<string, Reports>> {
    if (ids.length === 0) return new Map()
    return this.#client.run(async (redis) => {
      const entries = await redis.hmget(this.#keys.instances, ...ids)
      const commands = ids.map((id, i) => {
        const entry = entries[i] ?? undefined
        return entry === undefined ? [] : reportCommands(this.#keys, id, listed(id, entry).hypervisors)
      })
      const replies = await runPipeline(redis, commands.flat())
      return new Map(
        ids.flatMap((id, i) => {
          const values = replies.splice(0, commands[i]!.length)
          const [first, ...others] = reportsOf(values, id, this.#cipher, Date.now())
          return first === undefined ? [] : [[id, withoutRemoved(others.reduce(joinReports, first))]]
        }),
      )
    })
  }

  async values(id: string): Promise<StoredBytes | undefined> {
    return this.#client.run((redis) => this.#values(redis, this.#keys.instance(id)))
  }

  async write(change: RecordChange): Promise<Written> {
    return parsePut(await this.#script(putArguments(change)))
  }

  async writeEncrypted(values: EncryptedValues, options: WriteOptions): Promise<EncryptedWritten> {
    return parsePutEncrypted(await this.#script(putEncryptedArguments(values, options)))
  }

  async remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult> {
    const verb = this.#cipher === undefined ? 'remove' : 'remove-encrypted'
    return parseRemoved(await this.#script(removeArguments(verb, id, revision, options)))
  }

  async convertToEncrypted(values: EncryptedValues, digest: string | undefined): Promise<Converted> {
    return parseConverted(await this.#script(['encrypt', ...valueArguments(values), formatDigest(digest)]))
  }

  async convertToPlain(
    document: unknown,
    userData: Buffer | undefined,
    digest: string | undefined,
  ): Promise<Converted> {
    return parseConverted(
      await this.#script(['decrypt', JSON.stringify(document), userData ?? Buffer.alloc(0), formatDigest(digest)]),
    )
  }

  async mark(as: 'plain' | 'encrypted'): Promise<void> {
    await this.#script([`mark-${as}`])
  }

  async initialise(): Promise<boolean> {
    const [verdict] = await this.#script(['init'])
    return verdict === 'initialised'
  }

  async unannounced(names: readonly string[]): Promise<readonly string[]> {
    const unknown = names.filter((name) => !this.#announced.has(name))
    if (unknown.length === 0) return []
    try {
      const missing = await this.#client.run((redis) => unannouncedOf(redis, this.#keys, unknown))
      for (const name of unknown) if (!missing.includes(name)) this.#announced.add(name)
      return missing
    } catch {
      // the record is published: that the warning could not be determined is no failure
      return []
    }
  }

  async hypervisors(names?: readonly string[]): Promise<readonly AnnouncedHypervisor[]> {
    return this.#client.run((redis) =>
      names === undefined ? announcedHypervisors(redis, this.#keys) : announcementsOf(redis, this.#keys, names),
    )
  }

  async list(): Promise<readonly Listed[]> {
    const entries = await this.#client.run((redis) => this.#index(redis))
    return [...entries].map(([id, text]) => listed(id, text)).sort((a, b) => (a.id < b.id ? -1 : 1))
  }

  async tombstones(): Promise<readonly Removed[]> {
    return this.#client.run(async (redis) => {
      const prefix = this.#keys.tombstone('')
      const removed = new Map<string, Removed>() // a scan may return a key twice
      for await (const page of redis.scanStream({ match: `${prefix}*`, count: SCAN_BATCH })) {
        const keys = page as string[]
        const texts = await runPipeline(
          redis,
          keys.map((key) => ['get', key]),
        )
        for (const [i, key] of keys.entries()) {
          const id = key.slice(prefix.length)
          const text = texts[i]
          if (text instanceof Error) throw text
          const tombstone = parseTombstone(String(text)) // it may have expired meanwhile
          if (tombstone !== undefined) removed.set(id, { id, ...tombstone })
        }
      }
      return [...removed.values()]
    })
  }

  close(): Promise<void> {
    return this.#client.close()
  }

  async #values(redis: Redis, key: string): Promise<StoredBytes | undefined> {
    const lengths = lengthsOf(await runPipeline(redis, lengthCommands(key)))
    const fault = formatTooLong(lengths, true) ?? formatUserDataTooLong(lengths.userData)
    if (fault !== undefined) return { record: NONE, userData: undefined, digest: undefined, fault }
    const [record, userData, digest] = await redis.hmgetBuffer(key, 'record', 'user-data', 'digest')
    // ioredis has null for nil
    return record ? { record, userData: userData ?? undefined, digest: digest?.toString() } : undefined
  }

  async #index(redis: Redis): Promise<ReadonlyMap<string, string>> {
    await checkIndex((commands) => runPipeline(redis, commands), this.#keys.instances)
    return new Map(Object.entries(await redis.hgetall(this.#keys.instances)))
  }

  #script(args: ScriptArguments): Promise<ScriptAnswer> {
    return this.#client.run((redis) => redis.imdsPublish(this.#keys.region, ...args))
  }
}

/** Why user-data is not read, or undefined. Every daemon rejects it, whatever limit it has. */
function formatUserDataTooLong(bytes: number): string | undefined {
  return bytes > MAX_USER_DATA_BYTES + MAX_ENCRYPTION_OVERHEAD_BYTES
    ? `the user-data is ${String(bytes)} bytes, more than the limit of ${String(MAX_USER_DATA_BYTES)}`
    : undefined
}

/** Reads an entry of the index. Lua's JSON writes an empty list as `{}`. */
function listed(id: string, text: string): Listed {
  const { revision, addresses, hypervisors, sealedAt } = JSON.parse(text) as {
    revision: string
    addresses: object
    hypervisors: object
    sealedAt?: string
  }
  return {
    id,
    revision: Number(revision),
    hypervisors: Object.values(hypervisors) as string[],
    addresses: Object.values(addresses) as string[],
    ...(sealedAt !== undefined && { sealedAt }),
  }
}
