/**
 * The write side in Redis: the one place that changes it, through publish.lua alone. With keys, publish-encrypted.ts makes what it writes.
 */
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import type { Instance } from '../../metadata/instance.ts'
import { again, close, connectToRegion, isDenied, reasonOf, type Connection, type RedisSettings } from './connection.ts'
import { keysOf, type Keys } from './keys.ts'
import { decryptAnew, encryptAnew, writeEncrypted, type ScriptAnswer, type ScriptedStore, type Values } from '../crypto/publisher.ts'
import {
  changeSeal, publish, StoreUnavailable, type AnnouncedHypervisor, type Backend, type DecryptResult, type EncryptResult, type Listed, type Publisher,
  type Published, type PutOptions, type PutResult, type RemoveResult, type SealResult, type UserDataChange, type Written,
} from '../publish.ts'
import { readStored } from '../crypto/stored.ts'
import type { RecordCipher } from '../crypto/record-cipher.ts'
import { TurnBudget } from '../../runtime/turn-budget.ts'

const SCRIPT = readFileSync(new URL('publish.lua', import.meta.url), 'utf8')
/** For so long a failover, or a slot that a Cluster moves, is waited for. */
const PATIENCE_MS = 10_000
const RETRY_MS = 200
/** A watcher reports the notices of one instance at most this often: a migration notifies two hypervisors of each change. */
const REPORT_INTERVAL_MS = 50
/** Answers of a server that cannot take the command now, or is not the one to ask any more. The last is the script's, from within. */
const PASSING = /^(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|READONLY|LOADING|MASTERDOWN) |non local key/

/** Connects to a region's store for writing; `cipher` null: plain. Rejects when it cannot be reached. */
export async function openRedisPublisher(settings: RedisSettings, region: string, userDataMaxBytes: number, cipher: RecordCipher | null): Promise<Publisher> {
  const publisher = new RedisPublisher(settings, region, userDataMaxBytes, cipher)
  try {
    await publisher.connected()
    return publisher
  } catch (error) {
    throw unusable(error)
  }
}

class RedisPublisher implements Publisher, Backend, ScriptedStore {
  readonly region: string
  readonly #settings: RedisSettings
  readonly #keys: Keys
  readonly #userDataMaxBytes: number
  readonly #cipher: RecordCipher | null
  #connection: Promise<Connection> | undefined
  #closed = false
  /** Hypervisors that are known to have announced themselves. */
  readonly #announced = new Set<string>()

  constructor(settings: RedisSettings, region: string, userDataMaxBytes: number, cipher: RecordCipher | null) {
    this.#settings = settings
    this.region = region
    this.#keys = keysOf(region)
    this.#userDataMaxBytes = userDataMaxBytes
    this.#cipher = cipher
  }

  /** The connection, made anew when there is none. Rejects with what is wrong. */
  connected(): Promise<Connection> {
    if (this.#closed) return Promise.reject(new Error('the publisher is closed'))
    this.#connection ??= this.#connect('imds-publisher')
    return this.#connection
  }

  put(document: unknown, userData: UserDataChange = 'keep', options?: PutOptions): Promise<PutResult> {
    return publish(this, document, userData, this.#userDataMaxBytes, options)
  }

  async get(id: string): Promise<Published | undefined> {
    const values = await this.values(id)
    if (values === undefined) return undefined
    const stored = await readStored(id, values.record, values.userData, this.#cipher, new TurnBudget())
    if (stored.kind !== 'record') throw new Error(`${id} cannot be read: ${stored.reason}`)
    return { document: stored.document, userData: stored.userData }
  }

  async values(id: string): Promise<Values | undefined> {
    const [record, userData, digest] = await this.#patiently((redis) => redis.hmgetBuffer(this.#keys.instance(id), 'record', 'user-data', 'digest'))
    return record == null ? undefined : { record, userData: userData ?? null, digest: digest?.toString() ?? 'none' }
  }

  seal(id: string): Promise<SealResult> {
    return changeSeal(this, id, new Date().toISOString())
  }

  unseal(id: string): Promise<SealResult> {
    return changeSeal(this, id, undefined)
  }

  async encrypt(id: string, fromPlain: boolean): Promise<EncryptResult> {
    if (this.#cipher === null) throw new Error('no record keys are configured')
    return encryptAnew(this, this.#cipher, id, fromPlain)
  }

  async decrypt(id: string): Promise<DecryptResult> {
    if (this.#cipher === null) throw new Error('no record keys are configured')
    return decryptAnew(this, this.#cipher, id)
  }

  async markPlain(): Promise<void> {
    if (this.#cipher === null) throw new Error('no record keys are configured')
    await this.script('mark-plain')
  }

  async markEncrypted(): Promise<void> {
    if (this.#cipher === null) throw new Error('no record keys are configured')
    await this.script('mark-encrypted')
  }

  async write(instance: Instance, document: unknown, userData: UserDataChange, lifts: boolean, { dryRun = false }: PutOptions = {}): Promise<Written> {
    const script = (...args: (string | Buffer)[]) => this.script(...dryRun ? ['dry-run'] : [], ...args)
    const bytes = typeof userData === 'string' ? [userData] : ['set', Buffer.from(userData)]
    const answer = this.#cipher === null
      ? await script(lifts ? 'unseal' : 'put', JSON.stringify(document), ...bytes)
      : await writeEncrypted({ values: (id) => this.values(id), script }, this.#cipher, instance, document, userData, lifts)
    if ('result' in answer) return answer
    const [verdict, ...details] = answer
    if (verdict === 'published' || verdict === 'unchanged') return { result: verdict, sealedAt: details[1] }
    const [reason, a = '', b = '', c = ''] = details
    if (reason === 'stale') return { result: 'stale', revision: Number(a) }
    if (reason === 'address-owned') return { result: 'address-owned', network: a, address: b, owner: c }
    if (reason === 'invalid') return { result: 'invalid', faults: [{ path: '', message: `the store's script refused it: ${a}` }] }
    if (reason === 'user-data') return { result: 'user-data-changed' }
    throw refusal(details)
  }

  async remove(id: string, revision?: number): Promise<RemoveResult> {
    const [verdict, ...details] = await this.script(this.#cipher === null ? 'remove' : 'remove-encrypted', id, ...revision === undefined ? [] : [String(revision)])
    if (verdict === 'removed' || verdict === 'unchanged') return { result: verdict, revision: Number(details[0]) }
    if (verdict === 'absent') return { result: 'absent' }
    if (details[0] === 'stale') return { result: 'stale', revision: Number(details[1]) }
    throw refusal(details)
  }

  async initialise(): Promise<boolean> {
    const [verdict] = await this.script('init')
    return verdict === 'initialised'
  }

  async unannounced(names: readonly string[]): Promise<readonly string[]> {
    if (names.every((name) => this.#announced.has(name))) return []
    try {
      const found = await this.#patiently((redis) => redis.hmget(this.#keys.hypervisors, ...names))
      names.forEach((name, i) => { if (found[i] != null) this.#announced.add(name) })
      return names.filter((name) => !this.#announced.has(name))
    } catch { // the record is published: what can only be warned of does not turn that into a failure
      return []
    }
  }

  async hypervisors(): Promise<readonly AnnouncedHypervisor[]> {
    const texts = await this.#patiently((redis) => redis.hgetall(this.#keys.hypervisors))
    return Object.entries(texts).map(([name, text]) => announced(name, text)).sort((a, b) => a.name < b.name ? -1 : 1)
  }

  async list(): Promise<readonly Listed[]> {
    const entries = await this.#patiently((redis) => redis.hgetall(this.#keys.instances))
    return Object.entries(entries).map(([id, text]) => listed(id, text)).sort((a, b) => a.id < b.id ? -1 : 1)
  }

  async watch(changed: (id: string) => void): Promise<() => Promise<void>> {
    const pending = new Map<string, NodeJS.Timeout>()
    const report = (id: string) => {
      // Notices that come before the timer ends are covered by its report; a later one starts the next timer. So the last report is never early.
      if (pending.has(id)) return
      pending.set(id, setTimeout(() => {
        pending.delete(id)
        changed(id)
      }, REPORT_INTERVAL_MS))
    }
    let known: Record<string, string> | undefined
    const stopping = new AbortController()
    const { promise: stopped, resolve: stop } = Promise.withResolvers<string>()
    await new Promise<void>((resolve, reject) => {
      const session = async () => {
        const connection = await this.#connect('imds-watch')
        try {
          connection.redis.on('pmessage', (_pattern: string, _channel: string, id: string) => { report(id) })
          await connection.redis.psubscribe(this.#keys.notices('*'))
          const now = await this.#patiently((redis) => redis.hgetall(this.#keys.instances))
          // No notice came while there was no connection: compare the store with what it held at the last one.
          if (known !== undefined) for (const id of new Set([...Object.keys(known), ...Object.keys(now)])) if (known[id] !== now[id]) report(id)
          known = now
          resolve()
          return await Promise.race([connection.closed, stopped])
        } finally {
          close(connection)
        }
      }
      const ended = (reason: string) => { reject(unusable(reason)) } // after the first session began this says nothing any more
      void again(session, ended, stopping.signal)
    }).catch((error: unknown) => {
      stopping.abort()
      throw error
    })
    return async () => {
      stopping.abort()
      stop('stopped')
      for (const timer of pending.values()) clearTimeout(timer)
      await Promise.resolve()
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    const connection = await this.#connection?.catch(() => undefined)
    if (connection !== undefined) close(connection)
  }

  script(...args: (string | Buffer)[]): Promise<ScriptAnswer> {
    return this.#patiently((redis) => (redis as ScriptedRedis).imdsPublish(this.#keys.region, ...args))
  }

  /** Does what can be done twice; again, on a new connection, while the store is on the way from one server to another. */
  async #patiently<T>(task: (redis: Redis) => Promise<T>): Promise<T> {
    for (const deadlineMs = performance.now() + PATIENCE_MS; ;) {
      const connecting = this.connected()
      try {
        return await task((await connecting).redis)
      } catch (error) {
        const { name, message } = error as Error
        if (name === 'ReplyError' && isDenied(error as Error)) throw unusable(error)
        if (this.#closed || (name === 'ReplyError' && !PASSING.test(message))) throw error
        connecting.then(close, () => { /* there is none */ })
        if (this.#connection === connecting) this.#connection = undefined
        if (performance.now() > deadlineMs) throw unusable(error)
        await sleep(RETRY_MS * (0.5 + Math.random()))
      }
    }
  }

  async #connect(name: string): Promise<Connection> {
    const connection = await connectToRegion(this.#settings, this.#keys.region, name)
    connection.redis.defineCommand('imdsPublish', { lua: SCRIPT, numberOfKeys: 1 })
    return connection
  }
}

type ScriptedRedis = Redis & { imdsPublish(key: string, ...args: (string | Buffer)[]): Promise<ScriptAnswer> }

function unusable(error: unknown): Error {
  return new StoreUnavailable(`cannot use the store: ${typeof error === 'string' ? error : reasonOf(error)}`, { cause: error })
}

/** A refusal that says how the store must be used. */
function refusal(details: readonly string[]): Error {
  return new Error(details[0] === 'encrypted' ? 'the region is encrypted: give its record keys (--record-keys, IMDS_RECORD_KEYS_FILE)' : `the store refused: ${details.join(' ')}`)
}

/** A daemon writes this, so it is not believed to have any shape. */
function announced(name: string, text: string): AnnouncedHypervisor {
  let state: Partial<Record<string, unknown>> = {}
  try {
    state = JSON.parse(text) as typeof state
  } catch { /* shown as unknown */ }
  const { version, instances, seenAt } = state
  return { name, version: typeof version === 'string' ? version : '', instances: typeof instances === 'number' ? instances : 0, seenAt: typeof seenAt === 'string' ? seenAt : '' }
}

/** The script writes an empty list as `{}`: its JSON knows no difference. */
function listed(id: string, text: string): Listed {
  const { revision, addresses, hypervisors } = JSON.parse(text) as { revision: string, addresses: object, hypervisors: object }
  return { id, revision: Number(revision), hypervisors: Object.values(hypervisors) as string[], addresses: Object.values(addresses) as string[] }
}
