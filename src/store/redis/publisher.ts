/** The write side in Redis. It changes the region only through publish.lua. */
import { readFileSync } from 'node:fs'
import type { Redis } from 'ioredis'
import type { Backend, RecordWriter } from '../backend.ts'
import { buildEncryptingWriter, type StoredBytes, type ValueStore } from '../crypto/encrypting-writer.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import { readPublished } from '../crypto/stored.ts'
import { publisherOn } from '../publish.ts'
import { parseTombstone } from '../seal.ts'
import { MAX_USER_DATA_BYTES } from '../settings.ts'
import type { Listed, Publisher, Removed } from '../publisher.ts'
import { announcedHypervisors, announcementsOf, unannouncedOf } from './announcements.ts'
import { runPipeline, type RedisSettings } from './connection.ts'
import { buildRegionClient, type RegionClient } from './region-client.ts'
import { buildRedisFleet } from './fleet.ts'
import { keysOf } from './keys.ts'
import { checkIndex, formatTooLong, lengthCommands, lengthsOf } from './lengths.ts'
import {
  formatDigest,
  parseConverted,
  parseEncrypted,
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
import { joinReports, withoutRemoved } from '../../metadata/reports.ts'
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
  const client = buildRegionClient(settings, keysOf(region).instances, SCRIPT)
  await client.open()
  return publisherOn(buildBackend(client, region, cipher), userDataMaxBytes)
}

function buildBackend(client: RegionClient, region: string, cipher: RecordCipher | undefined): Backend {
  const keys = keysOf(region)
  /** The hypervisors of which an announcement was seen: it is not asked for again. */
  const announced = new Set<string>()
  const script = (args: ScriptArguments): Promise<ScriptAnswer> =>
    client.run((redis) => redis.imdsPublish(keys.region, ...args))
  const values = (id: string) => client.run((redis) => readValues(redis, keys.instance(id)))
  const store: RecordWriter & ValueStore = {
    values,
    write: async (change) => parsePut(await script(putArguments(change))),
    writeEncrypted: async (encrypted, options) =>
      parsePutEncrypted(await script(putEncryptedArguments(encrypted, options))),
    remove: async (id, revision, options) => {
      const verb = cipher === undefined ? 'remove' : 'remove-encrypted'
      return parseRemoved(await script(removeArguments(verb, id, revision, options)))
    },
    convertToEncrypted: async (encrypted, digest) =>
      parseEncrypted(await script(['encrypt', ...valueArguments(encrypted), formatDigest(digest)])),
    convertToPlain: async (document, userData = NONE, digest) =>
      parseConverted(await script(['decrypt', JSON.stringify(document), userData, formatDigest(digest)])),
    mark: async (as) => {
      await script([`mark-${as}`])
    },
  }
  const conversion = cipher && buildEncryptingWriter(cipher, store, Date.now)
  return {
    region,
    noKeysReason: 'no record keys are configured',
    fleet: buildRedisFleet(client, keys),
    conversion,
    // Needs no lock: each run of the script is atomic, and refuses a write if the instance has changed since.
    transaction: (task) => task(conversion ?? store),
    get: async (id) => readPublished(id, await values(id), cipher),
    /** Only reports by hypervisors that the record names are read. */
    reports: (id) =>
      client.run(async (redis) => {
        const entry = (await redis.hget(keys.instances, id)) ?? undefined
        if (entry === undefined) return undefined
        const replies = await runPipeline(redis, reportCommands(keys, id, listed(id, entry).hypervisors))
        const [first, ...others] = reportsOf(replies, id, cipher, Date.now())
        return first && withoutRemoved(others.reduce(joinReports, first))
      }),
    initialise: async () => (await script(['init']))[0] === 'initialised',
    unannounced: async (names) => {
      const unknown = names.filter((name) => !announced.has(name))
      if (unknown.length === 0) return []
      try {
        const missing = await client.run((redis) => unannouncedOf(redis, keys, unknown))
        for (const name of unknown) if (!missing.includes(name)) announced.add(name)
        return missing
      } catch {
        // the record is published: that the warning could not be determined is no failure
        return []
      }
    },
    hypervisors: (names) =>
      client.run((redis) =>
        names === undefined ? announcedHypervisors(redis, keys) : announcementsOf(redis, keys, names),
      ),
    list: async () => {
      const entries = await client.run(async (redis) => {
        await checkIndex((commands) => runPipeline(redis, commands), keys.instances)
        return redis.hgetall(keys.instances)
      })
      return Object.entries(entries)
        .map(([id, text]) => listed(id, text))
        .sort((a, b) => (a.id < b.id ? -1 : 1))
    },
    tombstones: () => client.run((redis) => readTombstones(redis, keys.tombstone(''))),
    close: () => client.close(),
  }
}

/** `prefix`: of the keys of tombstones. */
async function readTombstones(redis: Redis, prefix: string): Promise<readonly Removed[]> {
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
}

async function readValues(redis: Redis, key: string): Promise<StoredBytes | undefined> {
  const lengths = lengthsOf(await runPipeline(redis, lengthCommands(key)))
  const fault = formatTooLong(lengths, true) ?? formatUserDataTooLong(lengths.userData)
  if (fault !== undefined) return { record: NONE, userData: undefined, digest: undefined, fault }
  const [record, userData, digest] = await redis.hmgetBuffer(key, 'record', 'user-data', 'digest')
  // ioredis has null for nil
  return record ? { record, userData: userData ?? undefined, digest: digest?.toString() } : undefined
}

/** Why user-data is not read, or undefined. Every daemon rejects it, whatever limit it has. */
function formatUserDataTooLong(bytes: number): string | undefined {
  return bytes > MAX_USER_DATA_BYTES + MAX_ENCRYPTION_OVERHEAD_BYTES
    ? `the user-data is ${bytes} bytes, more than the limit of ${MAX_USER_DATA_BYTES}`
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
